//! Attention: grids and shared memory of the kernels in `kernels/attention.cu` and `tensor_cores.cu`.

use chimera_core::device::Result;
use chimera_core::layers::{Attention, Dropout, Mask};

use super::{Arg, BLOCK, Driver, Element, Gpu, Tensor, WARP, float, int, long};

/// Rows that a block of the generic kernels has of its own, and the threads of any.
const OWN: usize = 16;
const THREADS: usize = 128;
/// Rows of a tile for tensor cores, and the most features of a head there.
const TILE: usize = 64;
/// Rows that a block has of its own there.
const QUERIES: usize = 2 * TILE;
const KEYS: usize = TILE;
/// Bytes of a tile, whose rows are padded.
const TILE_BYTES: usize = TILE * 72 * 2;
/// Features of a head that the registers of a warp hold.
const MOST_FEATURES: usize = 256;

impl<D: Driver> Gpu<D> {
    pub(super) fn attend(
        &self,
        qkv: &Tensor<D::Memory>,
        by: &Attention<'_>,
    ) -> Result<(Tensor<D::Memory>, Tensor<D::Memory>)> {
        let qkv = self.cast(qkv)?;
        let sizes = self.sizes(&qkv, by)?;
        let rows = qkv.n_rows();
        let lengths = self.lengths(by.mask)?;
        let out = self.activation_of(&[rows, by.heads * sizes.dim])?;
        let log_sum = self.empty(&[rows, by.heads], Element::F32)?;
        let [key_0, key_1, first, threshold, scale] = dropout(by.dropout.as_ref());
        let args = [
            qkv.read(),
            out.write(),
            log_sum.write(),
            lengths.as_ref().map_or(Arg::Null, |lengths| Arg::Read(lengths, 0)),
            int(by.context),
            int(by.heads),
            int(sizes.dim),
            float(sizes.scale),
            key_0,
            key_1,
            first,
            threshold,
            scale,
        ];
        let AttentionLaunch { kernel, own, shared } = sizes.forward();
        self.run_shared(kernel, sizes.grid(own), THREADS, shared, &args)?;
        Ok((out, log_sum))
    }

    pub(super) fn attend_backward(
        &self,
        dy: &Tensor<D::Memory>,
        qkv: &Tensor<D::Memory>,
        out: &Tensor<D::Memory>,
        log_sum: &Tensor<D::Memory>,
        by: &Attention<'_>,
    ) -> Result<Tensor<D::Memory>> {
        let (dy, qkv, out) = (self.cast(dy)?, self.cast(qkv)?, self.cast(out)?);
        let sizes = self.sizes(&qkv, by)?;
        let n = qkv.n_rows() * by.heads;
        let delta = self.allocate(n * size_of::<f32>())?;
        let args = [dy.read(), out.read(), Arg::Write(&delta, 0), long(n), int(sizes.dim)];
        self.run("attention_delta", [n.div_ceil(BLOCK / WARP), 1], BLOCK, &args)?;
        let lengths = self.lengths(by.mask)?;
        let d_qkv = self.activation_of(&qkv.shape)?;
        let [key_0, key_1, first, threshold, scale] = dropout(by.dropout.as_ref());
        let args = [
            dy.read(),
            qkv.read(),
            log_sum.read(),
            Arg::Read(&delta, 0),
            d_qkv.write(),
            lengths.as_ref().map_or(Arg::Null, |lengths| Arg::Read(lengths, 0)),
            int(by.context),
            int(by.heads),
            int(sizes.dim),
            float(sizes.scale),
            key_0,
            key_1,
            first,
            threshold,
            scale,
        ];
        for AttentionLaunch { kernel, own, shared } in sizes.backward() {
            self.run_shared(kernel, sizes.grid(own), THREADS, shared, &args)?;
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

    fn sizes(&self, qkv: &Tensor<D::Memory>, by: &Attention<'_>) -> Result<Sizes> {
        let Attention { heads, context, .. } = *by;
        let dim = qkv.width() / 3 / heads;
        if dim > MOST_FEATURES {
            let reason =
                format!("heads of {dim} features, at most {MOST_FEATURES}: choose more heads");
            return Err(self.failed("attention", reason));
        }
        let n_heads = qkv.n_rows() / context * heads;
        let is_tiled = self.activations == Element::Bf16 && dim <= TILE;
        Ok(Sizes { dim, scale: 1.0 / (dim as f64).sqrt(), n_heads, context, is_tiled })
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
    /// Of all samples.
    n_heads: usize,
    context: usize,
    /// Whether tensor cores do it.
    is_tiled: bool,
}

struct AttentionLaunch {
    kernel: &'static str,
    /// Rows that a block has of its own.
    own: usize,
    /// Bytes of shared memory.
    shared: usize,
}

impl Sizes {
    fn forward(&self) -> AttentionLaunch {
        match self.is_tiled {
            true => tiled("tiled_attention", QUERIES, 1, 0),
            false => self.generic("attention", 1),
        }
    }

    fn backward(&self) -> [AttentionLaunch; 2] {
        match self.is_tiled {
            true => [
                tiled("tiled_attention_dq", QUERIES, 2, 0),
                tiled("tiled_attention_dkv", KEYS, 2, 2),
            ],
            false => [self.generic("attention_dq", 2), self.generic("attention_dkv", 2)],
        }
    }

    /// Own matrices, and two tiles whose rows are padded by one.
    fn generic(&self, kernel: &'static str, n_own: usize) -> AttentionLaunch {
        let floats = n_own * OWN * self.dim + 2 * WARP * (self.dim + 1);
        AttentionLaunch { kernel, own: OWN, shared: floats * size_of::<f32>() }
    }

    /// Rows go down: there a grid has 65,535 blocks at most.
    fn grid(&self, own: usize) -> [usize; 2] {
        [self.n_heads, self.context.div_ceil(own)]
    }
}

/// Own matrices, and two tiles and so many numbers for each of their rows: these, and those that come next.
fn tiled(kernel: &'static str, own: usize, n_own: usize, numbers: usize) -> AttentionLaunch {
    let next = 2 * (2 * TILE_BYTES + numbers * TILE * size_of::<f32>());
    AttentionLaunch { kernel, own, shared: n_own * own / TILE * TILE_BYTES + next }
}
