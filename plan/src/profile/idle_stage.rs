//! A stage that holds weights, and whose ops only spend time.

use std::time::{Duration, Instant};

use chimera_core::device::{Device, DeviceError};
use chimera_core::ids::StageId;
use chimera_core::stage::{Init, Micro, Output, Param, Stage};

type Result<T> = std::result::Result<T, DeviceError>;

/// One stage of a pipeline of them.
pub(super) struct IdleStage<D> {
    device: D,
    params: Vec<Param>,
    is_first: bool,
    is_last: bool,
    /// Elements of its output for the next stage.
    activation: usize,
    takes: Duration,
}

impl<D: Device> IdleStage<D> {
    pub(super) fn new(
        device: &D,
        id: StageId,
        n_stages: usize,
        (activation, weights): (usize, usize),
        takes: Duration,
    ) -> IdleStage<D> {
        IdleStage {
            device: device.clone(),
            params: vec![Param::new(format!("stage.{}", id.0), [weights], Init::Zeros)],
            is_first: id.0 == 0,
            is_last: id.index() + 1 == n_stages,
            activation,
            takes,
        }
    }

    /// Keeps its core busy, as ops do.
    fn work(&self) {
        let start = Instant::now();
        while start.elapsed() < self.takes {
            std::hint::spin_loop();
        }
    }

    fn row(&self) -> Result<D::Tensor> {
        self.device.zeros(&[1, self.activation])
    }
}

impl<D: Device> Stage for IdleStage<D> {
    type Tensor = D::Tensor;
    type Item = u32;
    type Saved = ();
    type Deferred = ();

    fn params(&self) -> &[Param] {
        &self.params
    }

    fn forward(
        &self,
        _: &[D::Tensor],
        _: &Micro<'_>,
        _: Option<D::Tensor>,
    ) -> Result<(Output<D::Tensor>, ())> {
        self.work();
        let output = if self.is_last {
            Output::Loss { loss: self.device.zeros(&[1])?, grad: self.row()? }
        } else {
            Output::Activation(self.row()?)
        };
        Ok((output, ()))
    }

    fn backward_input(
        &self,
        _: &[D::Tensor],
        _: &Micro<'_>,
        (): (),
        _: D::Tensor,
    ) -> Result<(Option<D::Tensor>, ())> {
        self.work();
        Ok(((!self.is_first).then(|| self.row()).transpose()?, ()))
    }

    fn backward_weight(&self, _: &Micro<'_>, (): (), _: &mut [D::Tensor]) -> Result<()> {
        Ok(())
    }
}
