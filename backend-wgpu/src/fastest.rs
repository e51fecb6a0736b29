//! The fastest matrix product of an adapter, measured once and cached for the user.

use std::fmt;
use std::fs::{self, File};
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use chimera_core::device::Result;
use chimera_core::layers::{Layers, Layout};

use crate::adapter::{Adapter, OpenError, Options};
use crate::freivalds::{Integers, checked};
use crate::shader::{LINEAR, LINEAR_SUBGROUPS};
use crate::tuning::{Product, Products, Size};

/// The shortest duration of a measurement.
const ENOUGH: Duration = Duration::from_millis(30);
/// The longest expected time of one product, in seconds; larger sizes are not measured.
const MOST_S: f64 = 0.25;
/// The most bytes of a cached file.
const MAX_BYTES: u64 = 1 << 10;

/// The speed of each matrix product on an adapter, in GFLOP/s per size; `None` if it was not
/// measured, or is wrong.
#[derive(Clone, PartialEq, Debug)]
pub struct Speeds(Vec<(Product, [Option<f64>; 3])>);

impl Adapter {
    /// Returns the cached speeds of its matrix products, or else measures and caches them in
    /// `$XDG_CACHE_HOME/chimera/kernels` or `~/.cache/chimera/kernels`. Returns `None` if they
    /// cannot be cached, so that all processes on a machine get the same answer.
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
        static PARTS: AtomicU64 = AtomicU64::new(0);
        let (process, nth) = (std::process::id(), PARTS.fetch_add(1, Ordering::Relaxed));
        let part = file.with_extension(format!("{process}.{nth}.part"));
        // A measurement takes seconds, so it is only made if it can be cached.
        if fs::create_dir_all(folder).and_then(|()| fs::write(&part, "")).is_err() {
            return Ok(None);
        }
        // If several processes measure at once, all take the speeds that the first has cached.
        let damaged = file.exists();
        let measured = self.measure().map(|measured| {
            let _ = fs::write(&part, measured.to_string()).and_then(|()| {
                if damaged { fs::rename(&part, &file) } else { fs::hard_link(&part, &file) }
            });
        });
        let _ = fs::remove_file(&part);
        measured.map(|()| kept())
    }

    /// Returns a hash of all that speeds depend on: the adapter, its driver and the kernels.
    fn key(&self) -> blake3::Hash {
        let mut hash = blake3::Hasher::new();
        hash.update(self.model().as_bytes());
        for text in [&LINEAR, &LINEAR_SUBGROUPS].into_iter().flat_map(|source| source.texts) {
            hash.update(text.as_bytes());
        }
        hash.finalize()
    }

    fn measure(&self) -> std::result::Result<Speeds, OpenError> {
        let open = |product: Product| {
            let product_only = Options { product: Some(product.into()), ..Options::default() };
            Ok((product, self.open(product_only)?))
        };
        let devices = self.products().into_iter().map(open);
        let devices = devices.collect::<std::result::Result<Vec<_>, OpenError>>()?;
        let mut trouble = "no matrix product gives the CPU's result".to_owned();
        let mut speeds = Speeds(Vec::new());
        for (product, k) in &devices {
            let all = speeds_of(k).unwrap_or_else(|error| {
                trouble = error.to_string();
                [None; 3]
            });
            speeds.0.push((*product, all));
        }
        // The chosen products must be right for gradients too.
        while let Some(best) = speeds.best() {
            let chosen = devices.iter().filter(|(product, _)| best.0.contains(product));
            let wrong = chosen.filter(|(_, k)| !has_right_gradients(k).unwrap_or(false));
            let wrong: Vec<Product> = wrong.map(|(product, _)| *product).collect();
            if wrong.is_empty() {
                return Ok(speeds);
            }
            let dropped = speeds.0.iter_mut().filter(|(product, _)| wrong.contains(product));
            dropped.for_each(|(_, all)| *all = [None; 3]);
        }
        let reason = format!("{trouble}: update its driver, or choose another device");
        Err(OpenError { adapter: self.model(), reason })
    }
}

/// Returns the speeds of a device's product at each size, as far as it is right.
fn speeds_of<K: Layers>(k: &K) -> Result<[Option<f64>; 3]> {
    let mut speeds = [None; 3];
    for size in Size::ALL {
        let flops = size.extents().map(|extent| extent as f64).iter().product::<f64>() * 2.0;
        if speeds[0].is_some_and(|gflops: f64| flops * 1e-9 > MOST_S * gflops) {
            continue;
        }
        let Some(product_s) = seconds(k, size.extents())? else { return Ok([None; 3]) };
        speeds[size as usize] = Some(flops * 1e-9 / product_s);
    }
    Ok(speeds)
}

/// Returns the seconds of a product; `None` if it is wrong.
fn seconds<K: Layers>(k: &K, [m, depth, n]: [usize; 3]) -> Result<Option<f64>> {
    let (a, b) = (Integers::some(m, depth, 1), Integers::some(depth, n, 2));
    let [on_a, on_b] = [&a, &b].map(|x| x.upload(k));
    let (on_a, on_b) = (on_a?, on_b?);
    let run = |n: u32| -> Result<(K::Tensor, Duration)> {
        let start = Instant::now();
        for _ in 1..n {
            k.linear(&on_a, &on_b, Layout::InOut, None, None)?;
        }
        let last = k.linear(&on_a, &on_b, Layout::InOut, None, None)?;
        k.download(&k.rows(&last, 0, 1)?)?;
        Ok((last, start.elapsed()))
    };
    let (first, _) = run(1)?; // makes the pipeline
    if !checked(k, &first, n, |v| a.times(&b.times(v)))? {
        return Ok(None);
    }
    let mut n = 1;
    loop {
        let (_, took) = run(n)?;
        if took >= ENOUGH || n >= 1 << 16 {
            return Ok(Some(took.as_secs_f64() / f64::from(n)));
        }
        n *= 2;
    }
}

/// Returns true if products with transposed operands are right, including those with partial tiles.
fn has_right_gradients<K: Layers>(k: &K) -> Result<bool> {
    let [m, depth, n] = [131, 67, 259];
    let (x, dy, w) =
        (Integers::some(m, depth, 3), Integers::some(m, n, 4), Integers::some(depth, n, 5));
    let (on_x, on_dy, on_w) = (x.upload(k)?, dy.upload(k)?, w.upload(k)?);
    let dx = k.linear_dx(&on_dy, &on_w, Layout::InOut)?;
    let mut dw = k.zeros(&[depth, n])?;
    k.linear_dw(&on_x, &on_dy, Layout::InOut, &mut dw, None)?;
    Ok(checked(k, &dx, depth, |v| dy.times(&w.across_times(v)))?
        && checked(k, &dw, n, |v| x.across_times(&dy.times(v)))?)
}

impl Speeds {
    /// Returns the fastest product per size, or the first size's; `None` if there is none.
    pub fn best(&self) -> Option<Products> {
        let fastest = |size: Size| {
            let speeds =
                self.0.iter().filter_map(|(product, all)| Some((product, all[size as usize]?)));
            speeds.max_by(|a, b| a.1.total_cmp(&b.1)).map(|(product, _)| *product)
        };
        let [small, large, skinny] = Size::ALL.map(fastest);
        let small = small?;
        Some(Products([small, large.unwrap_or(small), skinny.unwrap_or(small)]))
    }

    /// Reads the speeds in a file, if it has exactly those of `products`.
    fn read(file: &Path, products: &[Product]) -> Option<Speeds> {
        let text = io::read_to_string(File::open(file).ok()?.take(MAX_BYTES)).ok()?;
        let speed = |text: &str| match text {
            "-" => Some(None),
            _ => text.parse::<f64>().ok().filter(|speed| speed.is_finite()).map(Some),
        };
        let parse = |line: &str| {
            let (all, name) = line.split_once(' ')?;
            let all = all.split('/').map(speed).collect::<Option<Vec<_>>>()?;
            let (_, product) = Product::ALL.into_iter().find(|(known, _)| *known == name)?;
            Some((product, all.try_into().ok()?))
        };
        let speeds = Speeds(text.lines().map(parse).collect::<Option<_>>()?);
        let is_complete = speeds.0.iter().map(|(product, _)| product).eq(products);
        (is_complete && speeds.best().is_some()).then_some(speeds)
    }
}

/// One line per product: GFLOP/s at each size, and the name.
impl fmt::Display for Speeds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let speed =
            |speed: Option<f64>| speed.map_or("-".to_owned(), |speed| format!("{speed:.1}"));
        self.0
            .iter()
            .try_for_each(|(product, all)| writeln!(f, "{} {product}", all.map(speed).join("/")))
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
        assert!(measured.0.iter().all(|(_, all)| all[0].is_some_and(|s| s > 0.0)), "{measured}");
        let file =
            fs::read_dir(&cache).unwrap().map(|entry| entry.unwrap().path()).collect::<Vec<_>>();
        let [file] = &file[..] else { panic!("{file:?}") };
        assert_eq!(fs::read_to_string(file).unwrap(), measured.to_string());

        // A cached file is trusted, unless it is damaged.
        let other = measured.0.iter().map(|(product, _)| match product {
            Product::Registers => (*product, [Some(9e9), None, Some(1.0)]),
            _ => (*product, [Some(1.0), None, Some(2.0)]),
        });
        let other = Speeds(other.collect());
        fs::write(file, other.to_string()).unwrap();
        assert_eq!(adapter.speeds_in(&cache).unwrap(), Some(other));
        for damaged in ["", "1.0/-/- registers\n", "NaN/1.0/1.0 registers\n", "1.0/- tiles", "1.0"]
        {
            fs::write(file, damaged).unwrap();
            let again = adapter.speeds_in(&cache).unwrap().expect("it is kept");
            assert_eq!(fs::read_to_string(file).unwrap(), again.to_string(), "{damaged:?}");
            assert_eq!(again.0.len(), adapter.products().len());
        }
    }

    #[test]
    fn each_size_has_its_fastest_and_what_is_wrong_is_none() {
        let speeds = Speeds(vec![
            (Product::Registers, [Some(3.0), Some(1.0), None]),
            (Product::Tiles, [Some(2.0), Some(4.0), None]),
            (Product::WideTiles, [None; 3]),
        ]);
        let best = speeds.best().expect("one is right");
        assert_eq!(best.0, [Product::Registers, Product::Tiles, Product::Registers]);
        assert_eq!(best.to_string(), "registers (512), tiles (2048), registers (32 x 2048)");
        assert_eq!([best.of(65, 2048), best.of(1024, 1024)], [Product::Registers, Product::Tiles]);
        assert_eq!(Speeds(vec![(Product::Tiles, [None; 3])]).best(), None);
    }

    #[test]
    fn where_nothing_can_be_kept_nothing_is_known() {
        let adapter = adapters().into_iter().next().expect("an adapter");
        let file = tempfile::NamedTempFile::new().expect("a file");
        assert_eq!(adapter.speeds_in(file.path()).expect("it opens"), None);
    }
}
