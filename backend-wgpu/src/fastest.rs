//! The fastest matrix product of an adapter: measured once, and kept in the user's cache.

use std::fmt;
use std::fs::{self, File};
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use chimera_core::kernels::{Kernels, Layout, Result};

use crate::adapter::{Adapter, OpenError, Options};
use crate::shader::{LINEAR, LINEAR_SUBGROUPS};
use crate::tuning::Product;

/// Rows and columns of the matrices that are multiplied.
const SIZE: usize = 512;
/// A measurement takes at least so long.
const ENOUGH: Duration = Duration::from_millis(30);
/// Bytes of what is kept, at most.
const MAX_BYTES: u64 = 1 << 10;

/// How fast each way to multiply matrices is on an adapter, in GFLOP/s.
#[derive(Clone, PartialEq, Debug)]
pub struct Speeds(Vec<(Product, f64)>);

impl Adapter {
    /// The speeds of its matrix products: those that were kept, or else measured now and kept, in
    /// `$XDG_CACHE_HOME/chimera/kernels` or `~/.cache/chimera/kernels`. `None` where they cannot be kept, so that
    /// all who ask of one machine learn the same.
    ///
    /// # Errors
    /// If the adapter cannot be opened.
    pub fn speeds(&self) -> std::result::Result<Option<Speeds>, OpenError> {
        let set = |name| std::env::var_os(name).filter(|v| !v.is_empty()).map(PathBuf::from);
        let cache = set("XDG_CACHE_HOME").or_else(|| Some(set("HOME")?.join(".cache")));
        let Some(cache) = cache else { return Ok(None) };
        self.speeds_in(&cache.join("chimera/kernels"))
    }

    fn speeds_in(&self, folder: &Path) -> std::result::Result<Option<Speeds>, OpenError> {
        let file = folder.join(format!("wgpu-{}.txt", self.key()));
        let kept = || Speeds::read(&file, &self.products());
        if let Some(speeds) = kept() {
            return Ok(Some(speeds));
        }
        let measured = self.measure()?;
        // Of several who measure at once all take what the first has kept.
        static PARTS: AtomicU64 = AtomicU64::new(0);
        let (process, nth) = (std::process::id(), PARTS.fetch_add(1, Ordering::Relaxed));
        let part = file.with_extension(format!("{process}.{nth}.part"));
        let damaged = file.exists();
        let _ = fs::create_dir_all(folder)
            .and_then(|()| fs::write(&part, measured.to_string()))
            .and_then(
                |()| if damaged { fs::rename(&part, &file) } else { fs::hard_link(&part, &file) },
            );
        let _ = fs::remove_file(&part);
        Ok(kept())
    }

    /// What speeds depend on: the adapter with its driver, and the kernels.
    fn key(&self) -> blake3::Hash {
        let mut hash = blake3::Hasher::new();
        hash.update(self.model().as_bytes());
        for text in [&LINEAR, &LINEAR_SUBGROUPS].into_iter().flat_map(|source| source.texts) {
            hash.update(text.as_bytes());
        }
        hash.finalize()
    }

    fn measure(&self) -> std::result::Result<Speeds, OpenError> {
        let speed = |product| {
            let k = self.open(Options { product: Some(product), ..Options::default() })?;
            // What fails is not fast; it will say so if nothing else is there.
            Ok((product, gflops(&k).unwrap_or(0.0)))
        };
        self.products().into_iter().map(speed).collect::<std::result::Result<_, _>>().map(Speeds)
    }
}

/// GFLOP/s of a product of square matrices.
fn gflops<K: Kernels>(k: &K) -> Result<f64> {
    let values: Vec<f32> = (0..SIZE * SIZE).map(|i| (i % 17) as f32 / 17.0 - 0.5).collect();
    let a = k.upload(&[SIZE, SIZE], &values)?;
    let run = |n: u32| -> Result<Duration> {
        let start = Instant::now();
        for _ in 1..n {
            k.linear(&a, &a, Layout::InOut, None, None)?;
        }
        let last = k.linear(&a, &a, Layout::InOut, None, None)?;
        k.download(&k.rows(&last, 0, 1)?)?;
        Ok(start.elapsed())
    };
    run(1)?; // makes the pipeline
    let mut n = 1;
    loop {
        let took = run(n)?;
        if took >= ENOUGH || n >= 1 << 16 {
            return Ok(f64::from(n) * 2e-9 * (SIZE as f64).powi(3) / took.as_secs_f64());
        }
        n *= 2;
    }
}

impl Speeds {
    /// The fastest.
    pub fn best(&self) -> Option<Product> {
        self.0.iter().max_by(|a, b| a.1.total_cmp(&b.1)).map(|(product, _)| *product)
    }

    /// Those in a file, if it has one for each of `products` and no other.
    fn read(file: &Path, products: &[Product]) -> Option<Speeds> {
        let text = io::read_to_string(File::open(file).ok()?.take(MAX_BYTES)).ok()?;
        let parse = |line: &str| {
            let (speed, name) = line.split_once(' ')?;
            let speed = speed.parse::<f64>().ok().filter(|speed| speed.is_finite())?;
            let (_, product) = Product::ALL.into_iter().find(|(known, _)| *known == name)?;
            Some((product, speed))
        };
        let speeds: Vec<(Product, f64)> = text.lines().map(parse).collect::<Option<_>>()?;
        speeds
            .iter()
            .map(|(product, _)| *product)
            .eq(products.iter().copied())
            .then_some(Speeds(speeds))
    }
}

/// A line each: GFLOP/s, and the name.
impl fmt::Display for Speeds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|(product, speed)| writeln!(f, "{speed:.1} {product}"))
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::{Product, Speeds};
    use crate::adapters;

    #[test]
    fn what_was_measured_is_kept() {
        let adapter = adapters().into_iter().next().expect("an adapter");
        let folder = tempfile::tempdir().expect("a folder");
        let cache = folder.path().join("not/yet/there");
        let measured = adapter.speeds_in(&cache).expect("it opens").expect("it is kept");
        assert!(measured.0.iter().all(|(_, speed)| *speed > 0.0), "{measured}");
        let file =
            fs::read_dir(&cache).unwrap().map(|entry| entry.unwrap().path()).collect::<Vec<_>>();
        let [file] = &file[..] else { panic!("{file:?}") };
        assert_eq!(fs::read_to_string(file).unwrap(), measured.to_string());

        // What is there is believed, unless it is damaged.
        let other = measured.0.iter().map(|(product, _)| match product {
            Product::Registers => (*product, 9e9),
            _ => (*product, 1.0),
        });
        let other = Speeds(other.collect());
        fs::write(file, other.to_string()).unwrap();
        assert_eq!(adapter.speeds_in(&cache).unwrap(), Some(other));
        for damaged in ["", "1.0 registers\n", "NaN registers\n1.0 tiles\n", "1.0"] {
            fs::write(file, damaged).unwrap();
            let again = adapter.speeds_in(&cache).unwrap().expect("it is kept");
            assert_eq!(fs::read_to_string(file).unwrap(), again.to_string(), "{damaged:?}");
            assert_eq!(again.0.len(), adapter.products().len());
        }
    }

    #[test]
    fn where_nothing_can_be_kept_nothing_is_known() {
        let adapter = adapters().into_iter().next().expect("an adapter");
        let file = tempfile::NamedTempFile::new().expect("a file");
        assert_eq!(adapter.speeds_in(file.path()).expect("it opens"), None);
    }
}
