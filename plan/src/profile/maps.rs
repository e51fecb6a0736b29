//! Times of optimizers that multiply matrices, such as Muon. They are measured for each linear map, since
//! the time of their products depends on both of its extents and not on the number of its elements.

use std::collections::BTreeSet;
use std::time::Instant;

use chimera_core::engine::{Optimizer, Training, first_update};
use chimera_core::layers::{Call, Layers};
use chimera_core::model::{Cut, ModelConfig};
use chimera_core::stage::{Init, Param};

use super::stage_pass::{PassError, numbers};

/// Maps whose update takes more operations than this are left out.
const MOST_FLOPS: f64 = 4e9;
/// Operations of an update, relative to one product with the shorter side squared: some 15 products.
const N_PRODUCTS: f64 = 30.0;

/// Returns the extents of a call, whose product the time of a map is proportional to: its shorter
/// side twice, and the longer one.
pub(super) fn extents([rows, columns]: [usize; 2]) -> [usize; 3] {
    let (short, long) = (rows.min(columns), rows.max(columns));
    [short, short, long]
}

/// One linear map with an optimizer that updates it as a whole.
pub(super) struct MapUpdate<D: Layers> {
    device: D,
    training: Training,
    name: &'static str,
    extents: [usize; 3],
    param: [Param; 1],
    weights: [D::Tensor; 1],
    gradients: [D::Tensor; 1],
    states: [Vec<D::Tensor>; 1],
}

/// Returns the maps of the models' blocks, each once, that are small enough to be measured in every
/// pass; none if a device has no products for optimizers.
pub(super) fn of_blocks<'m, D: Layers>(
    device: &D,
    models: impl IntoIterator<Item = &'m ModelConfig>,
) -> Result<Vec<MapUpdate<D>>, PassError> {
    let optimizer = Optimizer::muon();
    if optimizer.check(device).is_err() {
        return Ok(Vec::new());
    }
    let block = Cut { blocks: 0..1, ..Cut::default() };
    let params = models.into_iter().flat_map(|model| model.params(&block));
    let maps: BTreeSet<[usize; 3]> =
        params.flat_map(|param| param.map_extents()).map(extents).collect();
    let flops = |map: &[usize; 3]| N_PRODUCTS * map.iter().map(|n| *n as f64).product::<f64>();
    let few = maps.into_iter().filter(|map| flops(map) <= MOST_FLOPS);
    few.map(|map| MapUpdate::new(device, map)).collect()
}

impl<D: Layers> MapUpdate<D> {
    fn new(device: &D, extents: [usize; 3]) -> Result<MapUpdate<D>, PassError> {
        let optimizer = Optimizer::muon();
        let [short, _, long] = extents;
        let shape = [short, long];
        let param = Param::new("map", shape, Init::Zeros);
        let drawn = |scale| device.upload_vec(&shape, numbers(short * long, scale));
        let state = optimizer.state(&param).iter().map(|_| device.zeros(&shape));
        Ok(MapUpdate {
            device: device.clone(),
            name: "muon",
            extents,
            weights: [drawn(0.05)?],
            gradients: [drawn(1e-4)?],
            states: [state.collect::<Result<_, _>>()?],
            param: [param],
            training: Training { optimizer, lr: 1e-9, min_lr: 1e-9, ..Training::default() },
        })
    }

    /// Updates it once.
    pub(super) fn time(&mut self) -> Result<Call, PassError> {
        let MapUpdate { device, training, name, extents, param, weights, gradients, states } = self;
        let start = Instant::now();
        first_update(device, training, param, weights, gradients, states)?;
        let seconds = start.elapsed().as_secs_f64();
        Ok(Call { layer: name, extents: extents.to_vec(), seconds })
    }
}
