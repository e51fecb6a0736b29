//! Attention: grids and shared memory of the kernels in `kernels/attention.cu` and `tiled_attention.cu`.

use chimera_core::device::Result;
use chimera_core::layers::{Attend, Attention, Dropout, Mask};

use super::{Arg, BLOCK, Driver, Element, Gpu, Tensor, WARP, float, int, long};

/// Rows that each block of the generic kernels owns, and threads per block of all kernels.
const OWN: usize = 16;
pub(super) const THREADS: usize = 128;
/// Bytes of features in a tile for tensor cores, and the padding of its rows.
const TILE: usize = 8192;
const PADDING: usize = 16;
/// The most features of a head that the tensor-core kernels take.
const MOST_TILED: usize = 128;
/// Threads that share a row of a head to sum its gradient times its result.
const DELTA_LANES: usize = 8;
/// The most blocks in a grid's second dimension.
const MOST_DOWN: usize = 65_535;
/// The most features of a head that fit the registers of a warp.
const MOST_FEATURES: usize = 256;

impl<D: Driver> Attend for Gpu<D> {
    fn attention(
        &self,
        qkv: &Tensor<D::Memory>,
        by: &Attention<'_>,
    ) -> Result<(Tensor<D::Memory>, Tensor<D::Memory>)> {
        self.attend_from(&self.cast(qkv)?, 0, by)
    }

    /// Copies `qkv` to the rows of `cache` from `past` on, and attends to all of them.
    fn attention_after(
        &self,
        qkv: &Tensor<D::Memory>,
        cache: &mut Tensor<D::Memory>,
        past: usize,
        by: &Attention<'_>,
    ) -> Result<(Tensor<D::Memory>, Tensor<D::Memory>)> {
        if cache.element != self.activations {
            let own = self.activation_of(&cache.shape)?;
            self.convert(cache, &own, own.len())?;
            *cache = own;
        }
        let (qkv, n) = (self.matrix(qkv)?, qkv.n_rows());
        let rows = self.view_rows(cache, past, n);
        let args = [qkv.read(), rows.write(), int(rows.width()), int(qkv.pitch)];
        self.run("pack_rows", [n, 1], BLOCK, &args)?;
        let context = past + n;
        let by = Attention { context, ..*by };
        self.attend_from(&self.view_rows(cache, 0, context), past, &by)
    }

    fn attention_dx(
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
        self.run("attention_delta", [n.div_ceil(BLOCK / DELTA_LANES), 1], BLOCK, &args)?;
        let seen = self.seen(by, qkv.n_rows())?;
        let d_qkv = self.activation_of(&qkv.shape)?;
        let args = [dy.read(), qkv.read(), log_sum.read(), Arg::Read(&delta, 0), d_qkv.write()];
        for launches in sizes.backward() {
            self.run_heads(&self.fitting(launches)?, &sizes, by.context, &args, seen.as_ref(), by)?;
        }
        Ok(d_qkv)
    }
}

impl<D: Driver> Gpu<D> {
    /// Computes attention of all rows, except the first `past` rows of the only sample.
    fn attend_from(
        &self,
        qkv: &Tensor<D::Memory>,
        past: usize,
        by: &Attention<'_>,
    ) -> Result<(Tensor<D::Memory>, Tensor<D::Memory>)> {
        let sizes = self.sizes(qkv, by)?;
        let rows = qkv.n_rows() - past;
        let seen = self.seen(by, qkv.n_rows())?;
        let out = self.activation_of(&[rows, by.heads * sizes.dim])?;
        let log_sum = self.empty(&[rows, by.heads], Element::F32)?;
        let args = [qkv.read(), out.write(), log_sum.write(), int(past)];
        let queries = by.context - past;
        self.run_heads(&self.fitting(sizes.forward())?, &sizes, queries, &args, seen.as_ref(), by)?;
        Ok((out, log_sum))
    }

    /// Runs a kernel over `rows` rows per head, with `args`, `HEAD_ARGS` and `DROP_ARGS`.
    fn run_heads(
        &self,
        launch: &AttentionLaunch,
        sizes: &Sizes,
        rows: usize,
        args: &[Arg<'_, D::Memory>],
        seen: Option<&D::Memory>,
        by: &Attention<'_>,
    ) -> Result<()> {
        let window = match by.mask {
            Mask::Window(rows) => rows.min(by.context),
            Mask::Causal | Mask::Documents(_) | Mask::Lengths(_) => by.context,
        };
        let heads = [
            seen.map_or(Arg::Null, |seen| Arg::Read(seen, 0)),
            int(by.context),
            int(window),
            int(by.heads),
            int(by.kv_heads),
            int(sizes.dim),
            float(1.0 / (sizes.dim as f64).sqrt()),
        ];
        let args = [args, &heads, &dropout(by.dropout.as_ref())].concat();
        // Rows use the second dimension: there are fewer blocks of them.
        let grid = [sizes.samples * launch.heads, rows.div_ceil(launch.own)];
        if grid[1] > MOST_DOWN {
            let reason = format!("{rows} rows of a head, at most {}", MOST_DOWN * launch.own);
            return Err(self.failed(launch.kernel, reason + ": choose a smaller context"));
        }
        self.run_shared(launch.kernel, grid, THREADS, launch.shared, &args)
    }

    /// Uploads the rows that each row sees, if the mask is data.
    fn seen(&self, by: &Attention<'_>, rows: usize) -> Result<Option<D::Memory>> {
        let seen = by.seen(rows / by.context.max(1));
        seen.map(|seen| self.indices(&seen)).transpose()
    }

    fn sizes(&self, qkv: &Tensor<D::Memory>, by: &Attention<'_>) -> Result<Sizes> {
        let Attention { heads, kv_heads, context, .. } = *by;
        let dim = by.head_dim(qkv.width());
        if dim > MOST_FEATURES {
            let reason =
                format!("heads of {dim} features, at most {MOST_FEATURES}: choose more heads");
            return Err(self.failed("attention", reason));
        }
        Ok(Sizes { dim, samples: qkv.n_rows() / context, heads, kv_heads, cell: self.activations })
    }

    /// Returns the tensor-core launch, if the chip has its kernel and memory, or the generic one.
    fn fitting(&self, [tiled, generic]: Launches) -> Result<AttentionLaunch> {
        let most = |launch: &AttentionLaunch| self.driver().most_shared(launch.kernel).unwrap_or(0);
        if !self.generic && tiled.shared <= most(&tiled) {
            return Ok(tiled);
        }
        let (needed, most) = (generic.shared, most(&generic));
        if needed > most {
            let reason = format!(
                "its blocks need {needed} bytes of shared memory, and this GPU has {most}: choose \
                 more heads, with fewer features each"
            );
            return Err(self.failed(generic.kernel, reason));
        }
        Ok(generic)
    }
}

fn dropout<M>(by: Option<&Dropout>) -> [Arg<'static, M>; 5] {
    let by = by.unwrap_or(&Dropout::NONE);
    [
        Arg::Int(by.key[0] as i32),
        Arg::Int(by.key[1] as i32),
        Arg::Long(by.first as i64),
        Arg::Int(by.threshold().into()),
        float(by.scale()),
    ]
}

struct Sizes {
    dim: usize,
    samples: usize,
    heads: usize,
    kv_heads: usize,
    /// Element type of features in shared memory, for tensor cores.
    cell: Element,
}

struct AttentionLaunch {
    kernel: &'static str,
    /// Heads of a sample, and rows that each block owns.
    heads: usize,
    own: usize,
    /// Bytes of shared memory.
    shared: usize,
}

/// The launch for tensor cores, and the one for any chip.
type Launches = [AttentionLaunch; 2];

impl Sizes {
    fn forward(&self) -> Launches {
        let tiled = match self.width() {
            64 => "tiled_attention",
            _ => "tiled_attention_128",
        };
        [self.tiled(tiled, self.heads, 2, 1), self.generic("attention", self.heads, 1)]
    }

    fn backward(&self) -> [Launches; 2] {
        let (heads, kv_heads) = (self.heads, self.kv_heads);
        let [dq, dkv] = match self.width() {
            64 => ["tiled_attention_dq", "tiled_attention_dkv"],
            _ => ["tiled_attention_dq_128", "tiled_attention_dkv_128"],
        };
        // As far as registers allow.
        let rows = if self.width() == 64 && self.cell == Element::Bf16 { 2 } else { 1 };
        [
            [self.tiled(dq, heads, rows, 2), self.generic("attention_dq", heads, 2)],
            [self.tiled(dkv, kv_heads, rows, 2), self.generic("attention_dkv", kv_heads, 2)],
        ]
    }

    /// Returns the features of a row of a tile.
    fn width(&self) -> usize {
        if self.dim <= 64 { 64 } else { MOST_TILED }
    }

    /// Returns a launch with its own matrices and two tiles, whose rows are padded by one.
    fn generic(&self, kernel: &'static str, heads: usize, n_own: usize) -> AttentionLaunch {
        let floats = n_own * OWN * self.dim + 2 * WARP * (self.dim + 1);
        AttentionLaunch { kernel, heads, own: OWN, shared: floats * size_of::<f32>() }
    }

    /// Returns a launch with its own matrices of `rows` times 16 rows per warp, two tiles, and the
    /// two tiles that come next. Heads with more features than tiles exist for need more shared
    /// memory than any chip has.
    fn tiled(
        &self,
        kernel: &'static str,
        heads: usize,
        rows: usize,
        n_own: usize,
    ) -> AttentionLaunch {
        let own = rows * THREADS / WARP * 16;
        let features = self.width() * self.cell.bytes();
        let (tile, row) = (TILE / features, features + PADDING);
        let next = 4 * tile * row;
        let shared = if self.dim > MOST_TILED { usize::MAX } else { n_own * own * row + next };
        AttentionLaunch { kernel, heads, own, shared }
    }
}
