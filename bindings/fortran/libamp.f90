! SPDX-License-Identifier: Apache-2.0
!> Mixed precision for programs in Fortran with procedures on arrays of real(c_float). The guide is
!> docs/start/other-languages.md. All of libamp_c is public here too.
!>
!>     type(amp_training) :: amp
!>     call amp%add_op("linear", "linear(float(out a!) y[n,o], float x[n,c], float w[o,c], int32 n, ...) -> void", slot)
!>     call amp%add_parameter("weight", w, dw)
!>     call amp%initialize("O1", emulate=.true.)
!>     do
!>       ...                                        forward, through the slot
!>       call amp%bracket_begin()
!>       ...                                        backward, from its constant times amp%seed_factor(), the loss scale
!>       call amp%bracket_end(action)               gradients are unscaled and checked
!>       call amp%step_begin(action)
!>       if (action == AMP_STEP) w = w - rate * dw  or skip: a gradient was not finite
!>       call amp%step_end()
!>     end do
!>     call amp%shutdown()
!>
!> Every call that can fail takes `status`, AMP_OK or less, for which message() has words. Without it the program stops
!> with these words.
module libamp
  use libamp_c
  implicit none
  public
  private :: text_bytes, kept_by_c, c_bytes, f_text, f_string

  !> A string of C's.
  type :: text_bytes
    character(c_char), pointer :: bytes(:) => null()
  end type text_bytes

  !> What libamp has the addresses of.
  type :: kept_by_c
    type(amp_model) :: model
    type(amp_optimizer) :: optimizer
    type(amp_scaled_loss) :: scaled
    type(amp_op), allocatable :: ops(:)
    type(amp_param), allocatable :: params(:)
    type(amp_buffer), allocatable :: buffers(:) ! of each parameter its values and its gradient
    type(c_ptr), allocatable :: handles(:)      ! of those that are trained
  end type kept_by_c

  !> A model with its optimizer. It is not copied: a program that assigns one that is described stops. Arrays and slots
  !> stay where they are until shutdown.
  type :: amp_training
    type(c_ptr) :: context = c_null_ptr !< for calls of libamp_c
    type(kept_by_c), pointer, private :: kept => null()
    type(amp_op), allocatable, private :: ops(:)
    type(amp_param), allocatable, private :: params(:)
    type(amp_buffer), allocatable, private :: buffers(:)
    type(text_bytes), allocatable, private :: texts(:)
    character(:), allocatable, private :: said ! of the last call that failed
  contains
    procedure :: add_op, add_parameter, initialize, step_begin, step_end
    procedure :: bracket_begin, seed_factor, bracket_end, bracket_cancel
    procedure :: clip_grad_norm, save, load, record, explain, health, message, shutdown
    generic :: assignment(=) => refuse_copy
    procedure, private :: arrange, ready, describes, conclude, text, release, refuse_copy
  end type amp_training

contains

  !> Are parameters 16 bits wide at this level, as at "O2"?
  logical function amp_retypes(level)
    character(*), intent(in) :: level
    character(len(level) + 1, c_char), target :: name
    type(amp_config), target :: config, resolved
    name = level // c_null_char
    amp_retypes = .false.
    if (amp_level_from_name(c_loc(name), c_loc(config%level)) /= AMP_OK) return
    if (amp_config_resolve(c_loc(config), c_loc(resolved)) /= AMP_OK) return
    amp_retypes = any(resolved%cast_model_type == [AMP_FLOAT16, AMP_BFLOAT16])
  end function amp_retypes

  ! ---- description ----

  !> A procedure that the policy may see. `slot` is where the program keeps its address, c_funloc(procedure), and calls
  !> it through. fp16, bf16: the same for 16-bit elements. op_class: AMP_LOWER, ... whatever the lists say.
  subroutine add_op(self, name, schema, slot, aliases, backward_of, op_class, fp16, bf16, flags, status)
    class(amp_training), intent(inout) :: self
    character(*), intent(in) :: name, schema
    type(c_funptr), target, intent(inout) :: slot
    character(*), intent(in), optional :: aliases, backward_of
    integer(c_int32_t), intent(in), optional :: op_class, flags
    type(c_funptr), intent(in), optional :: fp16, bf16
    integer(c_int32_t), intent(out), optional :: status
    type(amp_op) :: op
    if (.not. self%describes(name, c_associated(slot), "its slot holds no procedure", status)) return
    op%name = self%text(name)
    op%schema = self%text(schema)
    op%slot = c_loc(slot)
    if (present(aliases)) op%aliases = self%text(aliases)
    if (present(backward_of)) op%backward_of = self%text(backward_of)
    if (present(op_class)) op%op_class = op_class
    if (present(flags)) op%flags = flags
    if (present(fp16)) op%fp16 = fp16
    if (present(bf16)) op%bf16 = bf16
    if (.not. allocated(self%ops)) allocate (self%ops(0))
    self%ops = [self%ops, op]
  end subroutine add_op

  !> A parameter with its gradient, of any rank; without one it is not trained. Contiguous: a slice of columns is, one
  !> of rows is not. batch_norm: O2 and O5 leave it in FP32.
  subroutine add_parameter(self, name, values, grad, batch_norm, status)
    class(amp_training), intent(inout) :: self
    character(*), intent(in) :: name
    real(c_float), target, intent(inout) :: values(..)
    real(c_float), target, intent(inout), optional :: grad(..)
    logical, intent(in), optional :: batch_norm
    integer(c_int32_t), intent(out), optional :: status
    type(amp_param) :: param
    type(amp_buffer) :: pair(2)
    if (.not. self%describes(name, is_contiguous(values), "its elements are not contiguous", status)) return
    if (present(grad)) then
      if (.not. self%describes(name, is_contiguous(grad), "its gradient's elements are not contiguous", status)) return
      if (.not. self%describes(name, size(grad) == size(values), "its gradient has another size", status)) return
      pair(2)%data = c_loc(grad)
    end if
    param%name = self%text(name)
    if (present(batch_norm)) param%module_kind = merge(AMP_MODULE_BATCH_NORM, AMP_MODULE_OTHER, batch_norm)
    pair%size = size(values)
    pair(1)%data = c_loc(values)
    if (.not. allocated(self%params)) allocate (self%params(0), self%buffers(0))
    self%params = [self%params, param]
    self%buffers = [self%buffers, pair]
  end subroutine add_parameter

  ! ---- training ----

  !> Wires the ops for a level, "O1" for one. `config`: what is to be otherwise than by default, but for its level.
  subroutine initialize(self, level, emulate, config, status)
    class(amp_training), intent(inout) :: self
    character(*), intent(in) :: level
    logical, intent(in), optional :: emulate
    type(amp_config), intent(in), optional :: config
    integer(c_int32_t), intent(out), optional :: status
    type(amp_config), target :: settings
    type(c_ptr), target :: models(1), optimizers(1), context
    integer(c_int32_t) :: returned
    if (c_associated(self%context)) then
      call self%conclude(AMP_ERR_WRONG_STATE, status, "it is initialized already")
      return
    else if (.not. (allocated(self%ops) .or. allocated(self%params))) then
      call self%conclude(AMP_ERR_WRONG_STATE, status, "nothing is described: call add_op and add_parameter first, &
        &and again after shutdown, which forgets them")
      return
    end if
    if (present(config)) settings = config
    if (present(emulate)) settings%emulate = merge(AMP_ON, AMP_OFF, emulate)
    returned = amp_level_from_name(self%text(level), c_loc(settings%level))
    if (returned == AMP_OK) then
      call self%arrange(models(1), optimizers(1))
      returned = amp_initialize_many(c_loc(models), 1_c_size_t, c_loc(optimizers), 1_c_size_t, c_loc(settings), &
        c_loc(context))
      if (returned == AMP_OK) self%context = context
    end if
    call self%conclude(returned, status)
  end subroutine initialize

  !> Model and optimizer from the lists. They are kept, as the buffers are; ops and names are not, but may stay.
  subroutine arrange(self, model, optimizer)
    class(amp_training), intent(inout) :: self
    type(c_ptr), intent(out) :: model, optimizer
    type(kept_by_c), pointer :: kept
    integer :: i
    if (.not. allocated(self%params)) allocate (self%params(0), self%buffers(0))
    if (.not. allocated(self%ops)) allocate (self%ops(0))
    if (associated(self%kept)) deallocate (self%kept) ! of a level that was refused
    allocate (kept)
    self%kept => kept
    kept%ops = self%ops
    kept%params = self%params
    kept%buffers = self%buffers
    allocate (kept%handles(0))
    do i = 1, size(kept%params)
      kept%params(i)%tensor = c_loc(kept%buffers(2 * i - 1))
      if (.not. c_associated(kept%buffers(2 * i)%data)) cycle
      kept%buffers(2 * i - 1)%grad = c_loc(kept%buffers(2 * i))
      kept%handles = [kept%handles, kept%params(i)%tensor]
    end do
    kept%model%host = amp_buffer_host()
    kept%model%ops = c_loc(kept%ops)
    kept%model%n_ops = size(kept%ops)
    kept%model%params = c_loc(kept%params)
    kept%model%n_params = size(kept%params)
    kept%optimizer%params = c_loc(kept%handles)
    kept%optimizer%n_params = size(kept%handles)
    model = c_loc(kept%model)
    optimizer = c_loc(kept%optimizer)
  end subroutine arrange

  !> Opens the bracket around backward, which starts from its constant times seed_factor(). One that is open stays so.
  subroutine bracket_begin(self, status)
    class(amp_training), intent(inout) :: self
    integer(c_int32_t), intent(out), optional :: status
    integer(c_int32_t) :: returned
    if (.not. self%ready(status)) return
    returned = amp_scale_loss_begin(c_loc(self%kept%optimizer), c_null_ptr, c_loc(self%kept%scaled))
    call self%conclude(returned, status)
  end subroutine bracket_begin

  !> The loss scale of the open bracket, for the constant that backward starts from: who asks says that it multiplies.
  !> Where nobody asked, bracket_end says so (AMP-M01). Outside of a bracket it is 1.
  function seed_factor(self) result(factor)
    class(amp_training), intent(in) :: self
    real(c_float) :: factor
    factor = 1
    if (.not. c_associated(self%context)) return
    if (c_associated(self%kept%scaled%scale)) factor = amp_seed_factor(c_loc(self%kept%scaled))
  end function seed_factor

  !> Unscales the gradients and decides: AMP_STEP or AMP_SKIP. The bracket is closed whatever comes of it.
  subroutine bracket_end(self, action, status)
    class(amp_training), intent(inout) :: self
    integer(c_int32_t), intent(out), optional :: action, status
    integer(c_int32_t) :: returned
    if (present(action)) action = AMP_SKIP
    if (.not. self%ready(status)) return
    returned = amp_scale_loss_end(c_loc(self%kept%scaled))
    if (present(action) .and. returned == AMP_OK) action = self%kept%scaled%action
    call self%conclude(returned, status)
  end subroutine bracket_end

  !> As if backward had not happened.
  subroutine bracket_cancel(self, status)
    class(amp_training), intent(inout) :: self
    integer(c_int32_t), intent(out), optional :: status
    integer(c_int32_t) :: returned
    if (.not. self%ready(status)) return
    returned = amp_scale_loss_cancel(c_loc(self%kept%scaled))
    call self%conclude(returned, status)
  end subroutine bracket_cancel

  !> Update the parameters behind it if action is AMP_STEP: they and their gradients are FP32. step_end in either case.
  subroutine step_begin(self, action, status)
    class(amp_training), intent(inout) :: self
    integer(c_int32_t), intent(out) :: action
    integer(c_int32_t), intent(out), optional :: status
    type(amp_step_info), target :: info
    integer(c_int32_t) :: returned
    action = AMP_SKIP
    if (.not. self%ready(status)) return
    returned = amp_step_begin(c_loc(self%kept%optimizer), c_loc(info))
    if (returned == AMP_OK) action = info%action
    call self%conclude(returned, status)
  end subroutine step_begin

  subroutine step_end(self, status)
    class(amp_training), intent(inout) :: self
    integer(c_int32_t), intent(out), optional :: status
    integer(c_int32_t) :: returned
    if (.not. self%ready(status)) return
    returned = amp_step_end(c_loc(self%kept%optimizer))
    call self%conclude(returned, status)
  end subroutine step_end

  !> Scales the gradients so that their norm is at most max_norm; norm: before. Between bracket_end and step_begin.
  subroutine clip_grad_norm(self, max_norm, norm, status)
    class(amp_training), intent(inout) :: self
    real(c_float), intent(in) :: max_norm
    real(c_float), intent(out), optional :: norm
    integer(c_int32_t), intent(out), optional :: status
    real(c_float), target :: before
    integer(c_int32_t) :: returned
    before = 0
    if (present(norm)) norm = 0
    if (.not. self%ready(status)) return
    returned = amp_clip_grad_norm(c_loc(self%kept%optimizer), max_norm, c_loc(before))
    if (present(norm)) norm = before
    call self%conclude(returned, status)
  end subroutine clip_grad_norm

  !> Unwires the ops, and forgets what was described. Parameters are FP32 again: the masters' values, where there were
  !> masters.
  subroutine shutdown(self, status)
    class(amp_training), intent(inout) :: self
    integer(c_int32_t), intent(out), optional :: status
    integer(c_int32_t) :: returned
    returned = amp_shutdown(self%context)
    self%context = c_null_ptr
    call self%release()
    call self%conclude(returned, status)
  end subroutine shutdown

  ! ---- checkpoints ----

  !> Replaces the file as a whole: scales, configuration, FP32 values.
  subroutine save(self, path, status)
    class(amp_training), intent(inout) :: self
    character(*), intent(in) :: path
    integer(c_int32_t), intent(out), optional :: status
    integer(c_int32_t) :: returned
    character(c_char), target :: bytes(len_trim(path) + 1)
    bytes = c_bytes(path)
    returned = amp_state_save(self%context, c_loc(bytes), AMP_STATE_SAFETENSORS)
    call self%conclude(returned, status)
  end subroutine save

  !> What save wrote, checked as a whole before anything changes.
  subroutine load(self, path, status)
    class(amp_training), intent(inout) :: self
    character(*), intent(in) :: path
    integer(c_int32_t), intent(out), optional :: status
    integer(c_int32_t) :: returned
    character(c_char), target :: bytes(len_trim(path) + 1)
    bytes = c_bytes(path)
    returned = amp_state_load(self%context, c_loc(bytes))
    call self%conclude(returned, status)
  end subroutine load

  ! ---- what happened ----

  !> So far: brackets that decided, those of them that skipped, and the scale of the next one.
  subroutine record(self, brackets, skipped, scale, status)
    class(amp_training), intent(inout) :: self
    integer(c_int64_t), intent(out), optional :: brackets, skipped
    real(c_float), intent(out), optional :: scale
    integer(c_int32_t), intent(out), optional :: status
    type(amp_record), target :: found
    integer(c_int32_t) :: returned
    returned = amp_get_record(self%context, 0_c_int32_t, c_loc(found))
    if (present(brackets)) brackets = found%brackets
    if (present(skipped)) skipped = found%skipped
    if (present(scale)) scale = found%scale_after
    call self%conclude(returned, status)
  end subroutine record

  !> The level, warnings, and for each op its class and why.
  function explain(self) result(text)
    class(amp_training), intent(in) :: self
    character(:), allocatable :: text
    character(c_char), allocatable, target :: bytes(:)
    integer(c_size_t), target :: length
    length = 0
    if (amp_explain(self%context, c_null_ptr, c_null_ptr, 0_c_size_t, c_loc(length)) /= AMP_OK) length = 0
    allocate (bytes(length + 1))
    if (amp_explain(self%context, c_null_ptr, c_loc(bytes), length + 1, c_loc(length)) /= AMP_OK) length = 0
    text = f_text(bytes(:length))
  end function explain

  !> What is wrongly wired, in words; the last line is "sound" where nothing is.
  function health(self) result(text)
    class(amp_training), intent(in) :: self
    character(:), allocatable :: text
    character(c_char), allocatable, target :: bytes(:)
    integer(c_size_t), target :: length
    length = 0
    if (amp_health(self%context, c_null_ptr, 0_c_size_t, c_loc(length)) /= AMP_OK) length = 0
    allocate (bytes(length + 1))
    if (amp_health(self%context, c_loc(bytes), length + 1, c_loc(length)) /= AMP_OK) length = 0
    text = f_text(bytes(:length))
  end function health

  !> Of the last call that failed: what was wrong, where, and what to do.
  function message(self) result(text)
    class(amp_training), intent(in) :: self
    character(:), allocatable :: text
    text = ""
    if (allocated(self%said)) text = self%said
  end function message

  ! ---- within ----

  !> Ends a call: with its status or, if it failed and nobody asks, the program.
  subroutine conclude(self, returned, status, words)
    class(amp_training), intent(inout) :: self
    integer(c_int32_t), intent(in) :: returned
    integer(c_int32_t), intent(out), optional :: status
    character(*), intent(in), optional :: words
    character(:), allocatable :: stopped
    if (present(status)) status = returned
    if (returned == AMP_OK) return
    if (present(words)) then
      self%said = words
    else
      self%said = f_string(amp_last_error())
    end if
    if (present(status)) return
    stopped = "libamp: " // f_string(amp_status_name(returned)) // ": " // self%said
    error stop stopped
  end subroutine conclude

  !> Whether there is a context; without one the call ends here.
  function ready(self, status)
    class(amp_training), intent(inout) :: self
    integer(c_int32_t), intent(out), optional :: status
    logical :: ready
    ready = c_associated(self%context)
    if (.not. ready) call self%conclude(AMP_ERR_WRONG_STATE, status, "it is not initialized")
  end function ready

  !> Whether `name` may be added: before initialize, and if it is right; otherwise the call ends here.
  function describes(self, name, right, words, status)
    class(amp_training), intent(inout) :: self
    character(*), intent(in) :: name, words
    logical, intent(in) :: right
    integer(c_int32_t), intent(out), optional :: status
    logical :: describes
    describes = right .and. .not. c_associated(self%context)
    if (c_associated(self%context)) then
      call self%conclude(AMP_ERR_WRONG_STATE, status, trim(name) // ": it is added after initialize; shut down first")
    else if (.not. right) then
      call self%conclude(AMP_ERR_INVALID_ARGUMENT, status, trim(name) // ": " // words)
    else
      call self%conclude(AMP_OK, status)
    end if
  end function describes

  !> Two that are shut down would release the same memory.
  subroutine refuse_copy(self, other)
    class(amp_training), intent(inout) :: self
    class(amp_training), intent(in) :: other
    if (any([allocated(self%texts), allocated(other%texts)])) &
      error stop "libamp: an amp_training that is described is not copied: pass it, or point to it"
  end subroutine refuse_copy

  !> A string that C may keep until release.
  function text(self, words) result(address)
    class(amp_training), intent(inout) :: self
    character(*), intent(in) :: words
    type(c_ptr) :: address
    type(text_bytes) :: made
    allocate (made%bytes(len_trim(words) + 1))
    made%bytes = c_bytes(words)
    if (.not. allocated(self%texts)) allocate (self%texts(0))
    self%texts = [self%texts, made]
    address = c_loc(made%bytes)
  end function text

  pure function c_bytes(words) result(bytes)
    character(*), intent(in) :: words
    character(c_char) :: bytes(len_trim(words) + 1)
    bytes = transfer(trim(words) // c_null_char, bytes)
  end function c_bytes

  pure function f_text(bytes) result(words)
    character(c_char), intent(in) :: bytes(:)
    character(size(bytes)) :: words
    words = transfer(bytes, words)
  end function f_text

  function f_string(address) result(words)
    type(c_ptr), intent(in) :: address
    character(:), allocatable :: words
    character(c_char), pointer :: bytes(:)
    integer :: length
    call c_f_pointer(address, bytes, [huge(0)])
    length = 0
    do while (bytes(length + 1) /= c_null_char)
      length = length + 1
    end do
    words = f_text(bytes(:length))
  end function f_string

  !> Nothing is described any longer.
  subroutine release(self)
    class(amp_training), intent(inout) :: self
    integer :: i
    if (associated(self%kept)) deallocate (self%kept)
    if (allocated(self%ops)) deallocate (self%ops)
    if (allocated(self%params)) deallocate (self%params, self%buffers)
    if (.not. allocated(self%texts)) return
    do i = 1, size(self%texts)
      deallocate (self%texts(i)%bytes)
    end do
    deallocate (self%texts)
  end subroutine release
end module libamp
