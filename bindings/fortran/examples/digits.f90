! SPDX-License-Identifier: Apache-2.0
!> Trains a network of two layers on handwritten digits at an opt level: digits digits.csv O4
!>
!> A line of the file is 64 pixels from 0 to 16 and the digit. Every third line is for the test.
program digits
  use layers
  use libamp
  implicit none
  integer, parameter :: pixels = 64, hidden = 32, classes = 10, batch = 32, epochs = 12
  integer, parameter :: n_test = 599, n_train = 1198
  real(c_float), target :: w1(pixels, hidden), b1(hidden), w2(hidden, classes), b2(classes)
  real(c_float), target :: dw1(pixels, hidden), db1(hidden), dw2(hidden, classes), db2(classes)
  real(c_float), save :: images(pixels, n_train), test(pixels, n_test)
  integer, save :: labels(n_train), test_labels(n_test)
  character(256) :: path
  character(8) :: level
  type(amp_training) :: amp
  real(c_float) :: loss
  integer :: epoch, first, last

  if (command_argument_count() /= 2) error stop "usage: digits FILE.csv LEVEL"
  call get_command_argument(1, path)
  call get_command_argument(2, level)
  call read_images(trim(path))
  call begin(w1, b1)
  call begin(w2, b2)
  call describe(amp)
  call amp%add_parameter("first.weight", w1, dw1)
  call amp%add_parameter("first.bias", b1, db1)
  call amp%add_parameter("second.weight", w2, dw2)
  call amp%add_parameter("second.bias", b2, db2)
  call amp%initialize(level, emulate=amp_retypes(level)) ! 16-bit parameters in FP32 storage
  do epoch = 1, epochs
    do first = 1, n_train, batch
      last = min(first + batch - 1, n_train)
      call train(images(:, first:last), labels(first:last), loss)
    end do
  end do
  call report()
  call amp%shutdown()

contains

  subroutine train(x, digit, loss)
    real(c_float), contiguous, intent(in) :: x(:, :)
    integer, intent(in) :: digit(:)
    real(c_float), intent(out) :: loss
    real(c_float) :: h(hidden, size(digit)), dh(hidden, size(digit)), p(classes, size(digit))
    integer(c_int32_t) :: action
    integer :: i
    call forward(x, h, p)
    loss = 0
    do i = 1, size(digit)
      p(:, i) = exp(p(:, i) - maxval(p(:, i)))
      p(:, i) = p(:, i) / sum(p(:, i))
      loss = loss - log(p(digit(i) + 1, i)) / size(digit)
    end do

    dw1 = 0
    db1 = 0
    dw2 = 0
    db2 = 0
    call amp%bracket_begin()
    do i = 1, size(digit)
      p(digit(i) + 1, i) = p(digit(i) + 1, i) - 1
    end do
    p = p * (amp%seed_factor() / size(digit))
    call linear_dw(dw2, p, h)
    db2 = db2 + sum(p, 2)
    call linear_dx(dh, p, w2)
    where (h <= 0) dh = 0
    call linear_dw(dw1, dh, x)
    db1 = db1 + sum(dh, 2)
    call amp%bracket_end()
    call amp%clip_grad_norm(5.0_c_float)

    call amp%step_begin(action)
    if (action == AMP_STEP) then
      w1 = w1 - 0.3 * dw1
      b1 = b1 - 0.3 * db1
      w2 = w2 - 0.3 * dw2
      b2 = b2 - 0.3 * db2
    end if
    call amp%step_end()
  end subroutine train

  subroutine forward(x, h, y)
    real(c_float), contiguous, intent(in) :: x(:, :)
    real(c_float), contiguous, intent(inout) :: h(:, :), y(:, :)
    call linear(h, x, w1)
    h = max(h + spread(b1, 2, size(x, 2)), 0.0)
    call linear(y, h, w2)
    y = y + spread(b2, 2, size(x, 2))
  end subroutine forward

  !> Uniform within 1 / sqrt(inputs); the same numbers everywhere.
  subroutine begin(w, b)
    real(c_float), intent(out) :: w(:, :), b(:)
    integer(c_int64_t), save :: seed = 1
    integer :: i, j
    do j = 1, size(w, 2)
      do i = 1, size(w, 1)
        seed = mod(seed * 16807, 2147483647_c_int64_t)
        w(i, j) = real(2 * (real(seed) / 2147483647.0) - 1, c_float) / sqrt(real(size(w, 1), c_float))
      end do
    end do
    b = 0
  end subroutine begin

  subroutine read_images(path)
    character(*), intent(in) :: path
    integer :: row(pixels), digit, unit, i, tests, status
    open (newunit=unit, file=path, status="old", action="read", iostat=status)
    if (status /= 0) error stop "the file of images cannot be opened"
    do i = 1, n_train + n_test
      read (unit, *, iostat=status) row, digit
      if (status /= 0) error stop "the file of images: expected 1797 lines of 64 pixels and the digit"
      tests = (i + 2) / 3
      if (mod(i, 3) == 1) then
        test(:, tests) = real(row, c_float) / 16
        test_labels(tests) = digit
      else
        images(:, i - tests) = real(row, c_float) / 16
        labels(i - tests) = digit
      end if
    end do
    close (unit)
  end subroutine read_images

  subroutine report()
    real(c_float), save :: h(hidden, n_test), y(classes, n_test)
    real(c_float) :: scale
    integer(c_int64_t) :: steps, skipped
    character(:), allocatable :: health
    type(amp_op_stats), target :: stats(3)
    integer(c_size_t), target :: n
    integer :: i
    call forward(test, h, y)
    call amp%record(steps, skipped, scale)
    print "(2a, f0.2, a, f8.6, a, i0, a, i0, a, i0)", trim(level), ": ", &
      100.0 * count(maxloc(y, 1) == test_labels + 1) / n_test, " % right, loss ", loss, ", ", steps, &
      " steps, ", skipped, " skipped, scale ", int(scale)
    if (amp_get_op_stats(amp%context, c_loc(stats), 3_c_size_t, c_loc(n)) /= AMP_OK) error stop "amp_get_op_stats"
    do i = 1, 3
      print "(a, i0, a, i0)", "  ", stats(i)%calls, " calls, last in type ", stats(i)%last_target
    end do
    health = amp%health()
    i = index(health(:len(health) - 1), new_line("a"), back=.true.)
    print "(a)", health(i + 1:len(health) - 1)
  end subroutine report
end program digits
