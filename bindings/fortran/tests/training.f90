! SPDX-License-Identifier: Apache-2.0
!> What the module promises, as TAP. With an argument, what stops the program: "stop", a failing
!> call without `status`; "copy".
module product
  use libamp
  implicit none
  integer, parameter :: n = 4
  type(c_funptr), target, save :: slot, slot_dw

  abstract interface
    subroutine three(written, first, second, n) bind(C)
      import
      real(c_float), intent(inout) :: written(*)
      real(c_float), intent(in) :: first(*), second(*)
      integer(c_int32_t), value :: n
    end subroutine three
  end interface

contains

  subroutine multiply(y, x, w, n) bind(C)
    integer(c_int32_t), value :: n
    real(c_float), intent(inout) :: y(n)
    real(c_float), intent(in) :: x(n), w(n)
    y = x * w
  end subroutine multiply

  subroutine multiply_dw(dw, x, dy, n) bind(C)
    integer(c_int32_t), value :: n
    real(c_float), intent(inout) :: dw(n)
    real(c_float), intent(in) :: x(n), dy(n)
    dw = dw + x * dy
  end subroutine multiply_dw

  subroutine through(place, written, first, second)
    type(c_funptr), intent(in) :: place
    real(c_float), intent(inout) :: written(:)
    real(c_float), intent(in) :: first(:), second(:)
    procedure(three), pointer :: called
    call c_f_procpointer(place, called)
    call called(written, first, second, int(size(written), c_int32_t))
  end subroutine through

  subroutine describe(amp, w, dw)
    type(amp_training), intent(inout) :: amp
    real(c_float), target, intent(inout) :: w(:), dw(:)
    slot = c_funloc(multiply)
    slot_dw = c_funloc(multiply_dw)
    call amp%add_op("linear", "f(float(out a!) y[n], float x[n], float w[n], int32 n) -> void", slot)
    call amp%add_op("linear_dw", "f(float(a!) dw[n], float x[n], float dy[n], int32 n) -> void", slot_dw, &
      backward_of="linear")
    call amp%add_parameter("w", w, dw)
  end subroutine describe
end module product

program training
  use product
  implicit none
  real(c_float), target :: w(n), dw(n)
  integer :: number = 0
  type(amp_training) :: amp, other
  character(4) :: argument

  call get_command_argument(1, argument)
  if (argument == "stop") call amp%bracket_begin()
  if (argument == "copy") then
    call begin("O1", 1024.0_c_float)
    other = amp
  end if
  call without_a_level()
  call an_overflow_skips()
  call a_cancelled_bracket_changes_nothing()
  call a_step_at_each_level()
  call a_second_bracket_is_refused()
  call a_forgotten_factor_is_told()
  call a_state_comes_back()
  call bad_descriptions()
  print "(a, i0)", "1..", number

contains

  subroutine expect(condition, what)
    logical, intent(in) :: condition
    character(*), intent(in) :: what
    number = number + 1
    print "(a, i0, 2a)", trim(merge("ok     ", "not ok ", condition)) // " ", number, " - ", what
  end subroutine expect

  subroutine begin(level, scale)
    character(*), intent(in) :: level
    real(c_float), intent(in) :: scale
    character(len(level) + 1, c_char), target :: name
    type(amp_config), target :: config, resolved
    w = [1, 2, 3, 4]
    dw = 0
    name = level // c_null_char
    call expect(amp_level_from_name(c_loc(name), c_loc(config%level)) == AMP_OK, level // " is a level")
    call expect(amp_config_resolve(c_loc(config), c_loc(resolved)) == AMP_OK, level // ": its configuration")
    if (resolved%loss_scale < 0) config%init_scale = scale ! AMP_DYNAMIC is below 0
    call describe(amp, w, dw)
    call amp%initialize(level, emulate=amp_retypes(level) .or. resolved%patch_ops == AMP_ON, config=config)
  end subroutine begin

  subroutine backward(seed)
    real(c_float), intent(in) :: seed
    call through(slot_dw, dw, [0.4, 0.8, 1.2, 1.6], spread(seed, 1, n))
  end subroutine backward

  subroutine step()
    integer(c_int32_t) :: action
    call amp%step_begin(action)
    if (action == AMP_STEP) w = w - 0.5 * dw
    call amp%step_end()
  end subroutine step

  subroutine without_a_level()
    character(:), allocatable :: words
    integer(c_int32_t) :: status
    call amp%bracket_begin(status)
    words = amp%message()
    call expect(status == AMP_ERR_WRONG_STATE .and. words == "it is not initialized", &
      "calls before initialize are refused")
    w = 1
    dw = 0
    call describe(amp, w, dw)
    call amp%initialize("O9", status=status)
    words = amp%message()
    call expect(status /= AMP_OK .and. index(words, "O9") > 0, &
      "a level that is none is refused in words")
    call amp%initialize("O2", status=status)
    call expect(status == AMP_ERR_MISSING_HOOK, "so is one that needs emulate")
    call amp%initialize("O2", emulate=.true., status=status)
    words = amp%explain()
    call expect(status == AMP_OK .and. index(words, "linear") > 0, "then it is initialized")
    call amp%initialize("O1", status=status)
    call expect(status == AMP_ERR_WRONG_STATE, "and not twice")
    call amp%shutdown()
  end subroutine without_a_level

  subroutine an_overflow_skips()
    real(c_float) :: factor, scale
    integer(c_int32_t) :: action
    integer(c_int64_t) :: brackets, skipped
    call begin("O1", 1024.0_c_float)
    call amp%bracket_begin()
    factor = amp%seed_factor()
    call expect(nint(factor) == 1024, "the seed's factor is the scale")
    call backward(huge(factor))
    call amp%bracket_end(action)
    call expect(action == AMP_SKIP, "an overflow is a decision")
    call step()
    call amp%record(brackets, skipped, scale)
    call expect(all(nint(w) == [1, 2, 3, 4]), "nothing is updated")
    call expect(brackets == 1 .and. skipped == 1 .and. nint(scale) == 512, "the scale backs off")
    call amp%shutdown()
  end subroutine an_overflow_skips

  subroutine a_cancelled_bracket_changes_nothing()
    real(c_float) :: norm
    call begin("O1", 1024.0_c_float)
    dw = [3, 4, 0, 0]
    call amp%bracket_begin()
    call backward(amp%seed_factor())
    call amp%bracket_cancel()
    call expect(all(nint(dw) == [3, 4, 0, 0]), "gradients are what they were")
    call amp%bracket_begin()
    call backward(0 * amp%seed_factor())
    call amp%bracket_end()
    call amp%clip_grad_norm(1.0_c_float, norm)
    call expect(nint(norm) == 5 .and. nint(10 * dw(2)) == 8, "gradients are clipped")
    call amp%shutdown()
  end subroutine a_cancelled_bracket_changes_nothing

  !> fp16 has 11 significant bits, bfloat16 8.
  subroutine a_step_at_each_level()
    real(c_float) :: y(n)
    integer :: i, j
    do i = 1, size(AMP_LEVELS)
      call begin(AMP_LEVELS(i), 1024.0_c_float)
      call through(slot, y, spread(1.0_c_float, 1, n), w)
      do j = 1, 2
        dw = 0
        call amp%bracket_begin()
        call backward(0.25 * amp%seed_factor())
        call amp%bracket_end()
        call step()
      end do
      call expect(all(abs(w - [0.9, 1.8, 2.7, 3.6]) < [1, 2, 3, 4] / 128.0), AMP_LEVELS(i) // ": two steps")
      call expect(index(amp%health(), new_line("a") // "sound" // new_line("a")) > 0, AMP_LEVELS(i) // ": soundly wired")
      call amp%shutdown()
    end do
  end subroutine a_step_at_each_level

  subroutine a_second_bracket_is_refused()
    integer(c_int32_t) :: status
    call begin("O1", 1024.0_c_float)
    call expect(nint(amp%seed_factor()) == 1, "without a bracket the factor is 1")
    call amp%bracket_begin()
    call amp%bracket_begin(status)
    call expect(status == AMP_ERR_WRONG_STATE, "a second bracket is refused")
    call backward(0.25 * amp%seed_factor())
    call amp%bracket_end(status=status)
    call expect(status == AMP_OK .and. abs(dw(1) - 0.1) < 0.1 / 1024.0, "and the first one stays open")
    call amp%shutdown()
  end subroutine a_second_bracket_is_refused

  subroutine a_forgotten_factor_is_told()
    character(:), allocatable :: words
    integer(c_int32_t) :: status
    call begin("O1", 1024.0_c_float)
    call amp%bracket_begin()
    call backward(0.25_c_float)
    call amp%bracket_end(status=status)
    words = amp%message()
    call expect(status /= AMP_OK .and. index(words, "amp_seed_factor") > 0, "a factor that nobody asked for is told")
    call amp%shutdown()
  end subroutine a_forgotten_factor_is_told

  subroutine a_state_comes_back()
    character(*), parameter :: path = "training.safetensors"
    character(:), allocatable :: words
    integer(c_int32_t) :: status
    call begin("O2", 1024.0_c_float)
    call amp%bracket_begin()
    call backward(0.25 * amp%seed_factor())
    call amp%bracket_end()
    call step()
    call amp%save(path)
    w = 0
    call amp%load(path // "  ")
    call amp%shutdown()
    call expect(all(abs(w - [0.95, 1.9, 2.85, 3.8]) < [1, 2, 3, 4] / 1024.0), "what was saved comes back")
    call begin("O2", 1024.0_c_float)
    call amp%load("nowhere/" // path, status)
    words = amp%message()
    call expect(status == AMP_ERR_NOT_FOUND .and. index(words, "nowhere/") > 0, &
      "a file that is missing is named")
    call amp%shutdown()
  end subroutine a_state_comes_back

  subroutine bad_descriptions()
    character(:), allocatable :: words
    real(c_float), target :: rows(2, 3), short(2)
    type(c_funptr), target :: empty
    integer(c_int32_t) :: status
    empty = c_null_funptr
    rows = 0
    short = 0
    call amp%add_parameter("row", rows(1, :), status=status)
    words = amp%message()
    call expect(status /= AMP_OK .and. index(words, "row: its elements are not contiguous") == 1, &
      "a row is refused")
    call amp%add_parameter("matrix", rows, short, status=status)
    words = amp%message()
    call expect(status /= AMP_OK .and. index(words, "matrix: its gradient has another size") == 1, &
      "so is a short gradient")
    call amp%add_op("empty", "f(float x[n], int32 n) -> void", empty, status=status)
    words = amp%message()
    call expect(status == AMP_ERR_INVALID_ARGUMENT .and. index(words, "empty: its slot holds no procedure") == 1, &
      "and a slot without a procedure")
    call amp%initialize("O1", status=status)
    words = amp%message()
    call expect(status == AMP_ERR_WRONG_STATE .and. index(words, "nothing is described") == 1, &
      "what was refused is not there")
    call begin("O1", 1024.0_c_float)
    call amp%add_op("late", "f(float x[n], int32 n) -> void", slot, status=status)
    words = amp%message()
    call expect(status == AMP_ERR_WRONG_STATE .and. index(words, "late: it is added after initialize") == 1, &
      "an op comes before initialize")
    call amp%add_parameter("late", short, status=status)
    call expect(status == AMP_ERR_WRONG_STATE, "so does a parameter")
    call amp%shutdown()
    call amp%initialize("O1", emulate=.true., status=status)
    call expect(status == AMP_ERR_WRONG_STATE, "shutdown forgets the description")
  end subroutine bad_descriptions
end program training
