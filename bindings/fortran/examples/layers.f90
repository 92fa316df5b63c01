! SPDX-License-Identifier: Apache-2.0
!> The procedures that the policy may see, and the places through which they are called.
module layers
  use libamp
  implicit none
  private
  public :: describe, linear, linear_dx, linear_dw

  !> What the slots hold; libamp goes by the schema.
  abstract interface
    subroutine product3(written, first, second, n, c, o) bind(C)
      import
      real(c_float), intent(inout) :: written(*)
      real(c_float), intent(in) :: first(*), second(*)
      integer(c_int32_t), value :: n, c, o
    end subroutine product3
  end interface

  type(c_funptr), target, save :: linear_slot, linear_dx_slot, linear_dw_slot

contains

  subroutine describe(amp)
    type(amp_training), intent(inout) :: amp
    call add(amp, "linear", "float(out a!) y[n,o], float x[n,c], float w[o,c]", linear_slot, &
      c_funloc(linear_fp32), c_funloc(linear_fp16), c_funloc(linear_bf16))
    call add(amp, "linear_dx", "float(out a!) dx[n,c], float dy[n,o], float w[o,c]", linear_dx_slot, &
      c_funloc(linear_dx_fp32), c_funloc(linear_dx_fp16), c_funloc(linear_dx_bf16))
    call add(amp, "linear_dw", "float(a!) dw[o,c], float dy[n,o], float x[n,c]", linear_dw_slot, &
      c_funloc(linear_dw_fp32), c_funloc(linear_dw_fp16), c_funloc(linear_dw_bf16))
  end subroutine describe

  !> A schema has C's order of extents: the last is Fortran's first.
  subroutine add(amp, name, buffers, slot, fp32, fp16, bf16)
    type(amp_training), intent(inout) :: amp
    character(*), intent(in) :: name, buffers
    type(c_funptr), target, intent(inout) :: slot
    type(c_funptr), value :: fp32, fp16, bf16
    slot = fp32
    call amp%add_op(name, "f(" // buffers // ", int32 n, int32 c, int32 o) -> void", slot, aliases="linear", &
      fp16=fp16, bf16=bf16)
  end subroutine add

  ! ---- called by the program ----

  !> y = w^T x: images are columns here, and rows for C.
  subroutine linear(y, x, w)
    real(c_float), contiguous, intent(inout) :: y(:, :)
    real(c_float), contiguous, intent(in) :: x(:, :), w(:, :)
    call through(linear_slot, y, x, w, size(y, 2), size(x, 1), size(y, 1))
  end subroutine linear

  !> dx = w dy
  subroutine linear_dx(dx, dy, w)
    real(c_float), contiguous, intent(inout) :: dx(:, :)
    real(c_float), contiguous, intent(in) :: dy(:, :), w(:, :)
    call through(linear_dx_slot, dx, dy, w, size(dy, 2), size(dx, 1), size(dy, 1))
  end subroutine linear_dx

  !> dw = dw + x dy^T
  subroutine linear_dw(dw, dy, x)
    real(c_float), contiguous, intent(inout) :: dw(:, :)
    real(c_float), contiguous, intent(in) :: dy(:, :), x(:, :)
    call through(linear_dw_slot, dw, dy, x, size(dy, 2), size(x, 1), size(dy, 1))
  end subroutine linear_dw

  subroutine through(slot, written, first, second, n, c, o)
    type(c_funptr), intent(in) :: slot
    real(c_float), intent(inout) :: written(*)
    real(c_float), intent(in) :: first(*), second(*)
    integer, intent(in) :: n, c, o
    procedure(product3), pointer :: product
    call c_f_procpointer(slot, product)
    call product(written, first, second, int(n, c_int32_t), int(c, c_int32_t), int(o, c_int32_t))
  end subroutine through

  ! ---- in FP32 ----

  subroutine linear_fp32(y, x, w, n, c, o) bind(C)
    integer(c_int32_t), value :: n, c, o
    real(c_float), intent(inout) :: y(o, n)
    real(c_float), intent(in) :: x(c, n), w(c, o)
    y = matmul(transpose(w), x)
  end subroutine linear_fp32

  subroutine linear_dx_fp32(dx, dy, w, n, c, o) bind(C)
    integer(c_int32_t), value :: n, c, o
    real(c_float), intent(inout) :: dx(c, n)
    real(c_float), intent(in) :: dy(o, n), w(c, o)
    dx = matmul(w, dy)
  end subroutine linear_dx_fp32

  subroutine linear_dw_fp32(dw, dy, x, n, c, o) bind(C)
    integer(c_int32_t), value :: n, c, o
    real(c_float), intent(inout) :: dw(c, o)
    real(c_float), intent(in) :: dy(o, n), x(c, n)
    dw = dw + matmul(x, transpose(dy))
  end subroutine linear_dw_fp32

  ! ---- in 16 bits, whose bits amp_matmul knows: for C all is [row, column] ----

  subroutine linear_low(dtype, y, x, w, n, c, o)
    integer(c_int32_t), intent(in) :: dtype, n, c, o
    type(c_ptr), intent(in) :: y, x, w
    type(amp_matmul_args) :: args
    args%transpose_b = 1
    call multiply(args, dtype, dtype, y, x, w, n, o, c)
  end subroutine linear_low

  subroutine linear_dx_low(dtype, dx, dy, w, n, c, o)
    integer(c_int32_t), intent(in) :: dtype, n, c, o
    type(c_ptr), intent(in) :: dx, dy, w
    type(amp_matmul_args) :: args
    call multiply(args, dtype, dtype, dx, dy, w, n, c, o)
  end subroutine linear_dx_low

  !> The sum of gradients is FP32 at every level.
  subroutine linear_dw_low(dtype, dw, dy, x, n, c, o)
    integer(c_int32_t), intent(in) :: dtype, n, c, o
    type(c_ptr), intent(in) :: dw, dy, x
    type(amp_matmul_args) :: args
    args%transpose_a = 1
    args%c = dw
    args%c_dtype = AMP_FLOAT32
    args%beta = 1
    call multiply(args, dtype, AMP_FLOAT32, dw, dy, x, o, c, n)
  end subroutine linear_dw_low

  subroutine multiply(args, dtype, d_dtype, d, a, b, m, n, k)
    type(amp_matmul_args), target, intent(inout) :: args
    integer(c_int32_t), intent(in) :: dtype, d_dtype, m, n, k
    type(c_ptr), intent(in) :: d, a, b
    args%a_dtype = dtype
    args%b_dtype = dtype
    args%d_dtype = d_dtype
    args%a = a
    args%b = b
    args%d = d
    args%m = m
    args%n = n
    args%k = k
    if (amp_matmul(c_loc(args)) /= AMP_OK) error stop "amp_matmul"
  end subroutine multiply

  subroutine linear_fp16(y, x, w, n, c, o) bind(C)
    integer(c_int32_t), value :: n, c, o
    type(c_ptr), value :: y, x, w
    call linear_low(AMP_FLOAT16, y, x, w, n, c, o)
  end subroutine linear_fp16

  subroutine linear_bf16(y, x, w, n, c, o) bind(C)
    integer(c_int32_t), value :: n, c, o
    type(c_ptr), value :: y, x, w
    call linear_low(AMP_BFLOAT16, y, x, w, n, c, o)
  end subroutine linear_bf16

  subroutine linear_dx_fp16(dx, dy, w, n, c, o) bind(C)
    integer(c_int32_t), value :: n, c, o
    type(c_ptr), value :: dx, dy, w
    call linear_dx_low(AMP_FLOAT16, dx, dy, w, n, c, o)
  end subroutine linear_dx_fp16

  subroutine linear_dx_bf16(dx, dy, w, n, c, o) bind(C)
    integer(c_int32_t), value :: n, c, o
    type(c_ptr), value :: dx, dy, w
    call linear_dx_low(AMP_BFLOAT16, dx, dy, w, n, c, o)
  end subroutine linear_dx_bf16

  subroutine linear_dw_fp16(dw, dy, x, n, c, o) bind(C)
    integer(c_int32_t), value :: n, c, o
    type(c_ptr), value :: dw, dy, x
    call linear_dw_low(AMP_FLOAT16, dw, dy, x, n, c, o)
  end subroutine linear_dw_fp16

  subroutine linear_dw_bf16(dw, dy, x, n, c, o) bind(C)
    integer(c_int32_t), value :: n, c, o
    type(c_ptr), value :: dw, dy, x
    call linear_dw_low(AMP_BFLOAT16, dw, dy, x, n, c, o)
  end subroutine linear_dw_bf16
end module layers
