// SPDX-License-Identifier: Apache-2.0
use crate::config::Config;
use crate::context::{Context, Trained};
use crate::error::{c_string, Error, Result};
use crate::op::{alone, described, Op};
use crate::sys;
use crate::values::{host, Block, Identity, Kept, Param, Store};
use std::ffi::CString;
use std::os::raw::c_void;

/// An optimizer of a model: its name in calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Optimizer {
    pub(crate) model: Identity,
    pub(crate) index: usize,
}

/// What a context is made of: ops, parameters and the optimizers that update them.
pub struct Model {
    identity: Identity,
    ops: Vec<Op>,
    blocks: Vec<Block>,
    optimizers: Vec<Vec<Param>>,
}

impl Default for Model {
    fn default() -> Model {
        Model::new()
    }
}

impl Model {
    pub fn new() -> Model {
        Model { identity: Identity::new(), ops: Vec::new(), blocks: Vec::new(), optimizers: Vec::new() }
    }

    /// A function of `op!` that the policy may see. Where several of one kind are to be told apart, each needs an op.
    pub fn op(&mut self, op: Op) -> &mut Model {
        self.ops.push(op);
        self
    }

    pub fn param(&mut self, name: &str, values: impl Into<Vec<f32>>) -> Param {
        self.add(name, sys::AMP_MODULE_OTHER, values.into())
    }

    /// A parameter or statistic of batch norm, which O2 and O5 leave in FP32.
    pub fn norm_param(&mut self, name: &str, values: impl Into<Vec<f32>>) -> Param {
        self.add(name, sys::AMP_MODULE_BATCH_NORM, values.into())
    }

    fn add(&mut self, name: &str, module_kind: i32, values: Vec<f32>) -> Param {
        self.blocks.push(Block::new(name.to_owned(), module_kind, values));
        Param { model: self.identity, index: self.blocks.len() - 1 }
    }

    /// Its parameters get gradients, which begin as zeros. `initialize` refuses those of another model.
    pub fn optimizer(&mut self, params: &[Param]) -> Optimizer {
        for param in params.iter().filter(|param| param.model == self.identity) {
            self.blocks[param.index].train();
        }
        self.optimizers.push(params.to_vec());
        Optimizer { model: self.identity, index: self.optimizers.len() - 1 }
    }

    /// Wires the ops for the level. What this model holds moves into the context, and the model is empty as a new one;
    /// on an error it stays here.
    pub fn initialize(&mut self, config: &Config) -> Result<Context> {
        if self.ops.is_empty() && self.blocks.is_empty() {
            return Err(Error::new(sys::AMP_ERR_WRONG_STATE, "the model is empty: it has neither ops nor parameters; \
                                  what it had is in the context, if it was initialized already".to_owned()));
        }
        let ops = self.ops.iter().map(described).collect::<Result<Vec<_>>>()?;
        let mut raw_ops: Vec<_> = ops.iter().map(|op| op.raw).collect();
        let names = self.blocks.iter().map(|block| c_string(&block.name)).collect::<Result<Vec<_>>>()?;
        let params = self.params(&names);
        let mut model = sys::amp_model::init();
        let host = host();
        model.host = &host;
        (model.ops, model.n_ops) = (raw_ops.as_mut_ptr(), raw_ops.len());
        (model.params, model.n_params) = (params.as_ptr(), params.len());
        let handles = self.handles()?;
        let optimizers: Vec<_> = handles.iter().zip(&self.optimizers).map(trained).collect();

        let (model, mut context) = (Kept::new(Box::new(model)), std::ptr::null_mut());
        let raw_optimizers: Vec<_> = optimizers.iter().map(|optimizer| optimizer.raw.get()).collect();
        // SAFETY: descriptors and texts live as long as the call; what is kept longer, the context keeps below
        alone(|| unsafe {
            sys::amp_initialize_many(&model.get(), 1, raw_optimizers.as_ptr(), raw_optimizers.len(), &config.raw(),
                                     &mut context)
        })?;
        let store = Store { model: self.identity, blocks: std::mem::take(&mut self.blocks) };
        *self = Model::new();
        Ok(Context::new(context, store, model, optimizers))
    }

    fn params(&self, names: &[CString]) -> Vec<sys::amp_param> {
        let describe = |(block, name): (&Block, &CString)| {
            let mut param = sys::amp_param::init();
            param.tensor = block.handle();
            param.name = name.as_ptr();
            param.module_kind = block.module_kind;
            param
        };
        self.blocks.iter().zip(names).map(describe).collect()
    }

    fn handle(&self, param: &Param) -> Result<*mut c_void> {
        if param.model != self.identity {
            return Err(Error::invalid("an optimizer lists a parameter of another model: it takes what its own \
                                       model's `param` returned".to_owned()));
        }
        Ok(self.blocks[param.index].handle())
    }

    fn handles(&self) -> Result<Vec<Vec<*mut c_void>>> {
        let of = |params: &Vec<Param>| params.iter().map(|param| self.handle(param)).collect();
        self.optimizers.iter().map(of).collect()
    }
}

/// The handles are read by initialize alone.
fn trained((handles, params): (&Vec<*mut c_void>, &Vec<Param>)) -> Trained {
    let mut raw = sys::amp_optimizer::init();
    (raw.params, raw.n_params) = (handles.as_ptr(), handles.len());
    Trained { raw: Kept::new(Box::new(raw)), params: params.clone() }
}
