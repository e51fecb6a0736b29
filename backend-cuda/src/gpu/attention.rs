//! Attention: grids and shared memory of the kernels in `kernels/attention.cu` and `tensor_cores.cu`.

use chimera_core::kernels::{Dropout, Mask, Result};

use super::{Arg, BLOCK, Driver, Element, Gpu, Tensor, WARP, float, int, long};

/// Rows that a block has of its own, and its threads.
const OWN: usize = 16;
const THREADS: usize = 128;
/// Rows of a tile for tensor cores, and the most features of a head there.
const TILE: usize = 64;
/// Bytes of a tile, whose rows are padded.
const TILE_BYTES: usize = TILE * 72 * 2;
/// Features of a head that the registers of a warp hold.
const MOST_FEATURES: usize = 256;

impl<D: Driver> Gpu<D> {
    pub(super) fn attend(
        &self,
        qkv: &Tensor<D::Memory>,
        heads: usize,
        context: usize,
        mask: Mask<'_>,
        drop: Option<&Dropout>,
    ) -> Result<(Tensor<D::Memory>, Tensor<D::Memory>)> {
        let qkv = self.cast(qkv)?;
        let sizes = self.sizes(&qkv, heads, context)?;
        let rows = qkv.n_rows();
        let lengths = self.lengths(mask)?;
        let out = self.activation_of(&[rows, heads * sizes.dim])?;
        let log_sum = self.empty(&[rows, heads], Element::F32)?;
        let [key_0, key_1, first, threshold, scale] = dropout(drop);
        let args = [
            qkv.read(),
            out.write(),
            log_sum.write(),
            lengths.as_ref().map_or(Arg::Null, |lengths| Arg::Read(lengths, 0)),
            int(context),
            int(heads),
            int(sizes.dim),
            float(sizes.scale),
            key_0,
            key_1,
            first,
            threshold,
            scale,
        ];
        let (kernel, shared) = sizes.forward();
        self.run_shared(kernel, sizes.grid, THREADS, shared, &args)?;
        Ok((out, log_sum))
    }

    pub(super) fn attend_backward(
        &self,
        dy: &Tensor<D::Memory>,
        qkv: &Tensor<D::Memory>,
        out: &Tensor<D::Memory>,
        log_sum: &Tensor<D::Memory>,
        heads: usize,
        context: usize,
        mask: Mask<'_>,
        drop: Option<&Dropout>,
    ) -> Result<Tensor<D::Memory>> {
        let (dy, qkv, out) = (self.cast(dy)?, self.cast(qkv)?, self.cast(out)?);
        let sizes = self.sizes(&qkv, heads, context)?;
        let n = qkv.n_rows() * heads;
        let delta = self.allocate(n * size_of::<f32>())?;
        let args = [dy.read(), out.read(), Arg::Write(&delta, 0), long(n), int(sizes.dim)];
        self.run("attention_delta", [n.div_ceil(BLOCK / WARP), 1], BLOCK, &args)?;
        let lengths = self.lengths(mask)?;
        let d_qkv = self.activation_of(&qkv.shape)?;
        let [key_0, key_1, first, threshold, scale] = dropout(drop);
        let args = [
            dy.read(),
            qkv.read(),
            log_sum.read(),
            Arg::Read(&delta, 0),
            d_qkv.write(),
            lengths.as_ref().map_or(Arg::Null, |lengths| Arg::Read(lengths, 0)),
            int(context),
            int(heads),
            int(sizes.dim),
            float(sizes.scale),
            key_0,
            key_1,
            first,
            threshold,
            scale,
        ];
        for (kernel, shared) in sizes.backward() {
            self.run_shared(kernel, sizes.grid, THREADS, shared, &args)?;
        }
        Ok(d_qkv)
    }

    /// How many keys each sample has, unless rows see those up to themselves.
    fn lengths(&self, mask: Mask<'_>) -> Result<Option<D::Memory>> {
        match mask {
            Mask::Causal => Ok(None),
            Mask::Lengths(lengths) => self.indices(lengths).map(Some),
        }
    }

    fn sizes(&self, qkv: &Tensor<D::Memory>, heads: usize, context: usize) -> Result<Sizes> {
        let dim = qkv.width() / 3 / heads;
        if dim > MOST_FEATURES {
            let reason =
                format!("heads of {dim} features, at most {MOST_FEATURES}: choose more heads");
            return Err(self.failed("attention", reason));
        }
        let samples = qkv.n_rows() / context;
        let is_tiled = self.activations == Element::Bf16 && dim <= TILE;
        // Tiles go down: there a grid has 65,535 at most.
        let grid = [samples * heads, context.div_ceil(if is_tiled { TILE } else { OWN })];
        Ok(Sizes { dim, scale: 1.0 / (dim as f64).sqrt(), grid, is_tiled })
    }
}

/// `DROP_ARGS` of the kernels.
fn dropout<M>(by: Option<&Dropout>) -> [Arg<'static, M>; 5] {
    let by = by.unwrap_or(&Dropout::NONE);
    [
        Arg::Int(by.key[0] as i32),
        Arg::Int(by.key[1] as i32),
        Arg::Long(by.first as i64),
        Arg::Int(by.threshold() as i32),
        float(by.scale()),
    ]
}

struct Sizes {
    dim: usize,
    scale: f64,
    grid: [usize; 2],
    /// Whether tensor cores do it.
    is_tiled: bool,
}

impl Sizes {
    /// The kernel, and its shared memory.
    fn forward(&self) -> (&'static str, usize) {
        match self.is_tiled {
            true => ("tiled_attention", 3 * TILE_BYTES),
            false => ("attention", self.shared(1)),
        }
    }

    fn backward(&self) -> [(&'static str, usize); 2] {
        match self.is_tiled {
            true => {
                [("tiled_attention_dq", 4 * TILE_BYTES), ("tiled_attention_dkv", 4 * TILE_BYTES)]
            }
            false => [("attention_dq", self.shared(2)), ("attention_dkv", self.shared(2))],
        }
    }

    /// Bytes of so many matrices of own rows, and of two tiles whose rows are padded by one.
    fn shared(&self, own: usize) -> usize {
        (own * OWN * self.dim + 2 * WARP * (self.dim + 1)) * size_of::<f32>()
    }
}
