! SPDX-License-Identifier: Apache-2.0
!> The smallest training: a parameter, two ops, and the loop, at three levels.
module ops
  use libamp
  implicit none
  type(c_funptr), target, save :: mul_slot, mul_dw_slot ! where the program keeps its procedures, and libamp puts its own

  abstract interface
    subroutine op(written, first, second, n) bind(C)
      import
      integer(c_int32_t), value :: n
      real(c_float), intent(inout) :: written(n)
      real(c_float), intent(in) :: first(n), second(n)
    end subroutine op
  end interface

contains

  subroutine mul(y, x, w, n) bind(C)
    integer(c_int32_t), value :: n
    real(c_float), intent(inout) :: y(n)
    real(c_float), intent(in) :: x(n), w(n)
    y = x * w
  end subroutine mul

  subroutine mul_dw(dw, x, dy, n) bind(C)
    integer(c_int32_t), value :: n
    real(c_float), intent(inout) :: dw(n)
    real(c_float), intent(in) :: x(n), dy(n)
    dw = dw + x * dy
  end subroutine mul_dw

  subroutine call_op(slot, written, first, second)
    type(c_funptr), intent(in) :: slot
    real(c_float), intent(inout) :: written(:)
    real(c_float), intent(in) :: first(:), second(:)
    procedure(op), pointer :: procedure
    call c_f_procpointer(slot, procedure)
    call procedure(written, first, second, size(written, kind=c_int32_t))
  end subroutine call_op
end module ops

!> y = w * x, trained towards w = 3.
program minimal
  use ops
  implicit none
  real(c_float), parameter :: x(4) = [0.5, 1.0, 1.0, 2.0]
  real(c_float), target, save :: w(4), dw(4)
  character(2), parameter :: levels(3) = ["O0", "O1", "O4"]
  integer :: level
  do level = 1, size(levels)
    call train(levels(level))
  end do

contains

  subroutine train(level)
    character(*), intent(in) :: level
    type(amp_training) :: amp
    type(amp_config) :: config
    real(c_float) :: y(4)
    integer(c_int32_t) :: action
    integer :: i, taken
    mul_slot = c_funloc(mul)
    mul_dw_slot = c_funloc(mul_dw)
    call amp%add_op("mul", "mul(float(out a!) y[n], float x[n], float w[n], int32 n) -> void", mul_slot, &
      op_class=AMP_LOWER)
    call amp%add_op("mul_dw", "mul_dw(float(a!) dw[n], float x[n], float dy[n], int32 n) -> void", mul_dw_slot, &
      backward_of="mul")
    w = 1
    call amp%add_parameter("w", w, dw)
    config%init_scale = 131072 ! too much for fp16, so that the first steps are skipped
    call amp%initialize(level, emulate=level /= "O0", config=config)
    taken = 0
    do i = 1, 20
      call call_op(mul_slot, y, x, w)
      dw = 0
      call amp%bracket_begin()
      call call_op(mul_dw_slot, dw, x, amp%seed_factor() * 0.5 * (y - 3 * x)) ! seed_factor: the loss scale
      call amp%bracket_end()      ! gradients are unscaled and checked
      call amp%step_begin(action) ! AMP_SKIP where one was not finite
      if (action == AMP_STEP) then
        w = w - 0.5 * dw
        taken = taken + 1
      end if
      call amp%step_end()
    end do
    call amp%shutdown()
    print "(2a, i0, a, f6.4)", level, ": ", taken, " steps of 20, w = ", w(2)
  end subroutine train
end program minimal
