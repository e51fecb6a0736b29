//! Kernel times by name, printed at the end of a run that measures them.

use chimera_core::device::KernelTime;

use crate::cli::parts::terminal::console::{count, counted};

/// Number of kernels to show, longest first.
const MOST: usize = 10;

/// Returns the total time, a line for each of the longest kernels, and one for the others; nothing
/// without kernels.
pub(crate) fn table(kernels: &[KernelTime]) -> Vec<String> {
    let n: u64 = kernels.iter().map(|kernel| kernel.n).sum();
    let seconds: f64 = kernels.iter().map(|kernel| kernel.seconds).sum();
    if n == 0 {
        return Vec::new();
    }
    let row = |of: f64, n: u64, what: &str| {
        let percent = if seconds > 0.0 { 100.0 * of / seconds } else { 0.0 };
        format!("  {percent:>5.1} % {:>12.3} ms {:>9} x {what}", of * 1e3, count(n))
    };
    let (longest, others) = kernels.split_at(kernels.len().min(MOST));
    let mut lines = vec![format!(
        "kernels of the traced steps, of all ranks: {} in {seconds:.4} s",
        counted(n as f64, "launch", "es")
    )];
    lines.extend(longest.iter().map(|kernel| {
        let KernelTime { name, n, seconds, flops } = kernel;
        let is_timed_product = *flops > 0.0 && *seconds > 0.0;
        let speed = is_timed_product.then(|| format!(", {:.1} TFLOP/s", flops / seconds * 1e-12));
        row(*seconds, *n, &format!("{name}{}", speed.unwrap_or_default()))
    }));
    if !others.is_empty() {
        let seconds = others.iter().map(|kernel| kernel.seconds).sum();
        let n = others.iter().map(|kernel| kernel.n).sum();
        lines.push(row(seconds, n, &format!("{} others", others.len())));
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_are_shown_and_the_others_summed_up() {
        let kernel =
            |name: &str, n, seconds, flops| KernelTime { name: name.into(), n, seconds, flops };
        let mut kernels = vec![kernel("product 2 x 2 x 2", 1_000, 0.5, 1e12)];
        kernels.extend((0..11).map(|_| kernel("gelu", 2, 0.125 / 11.0, 0.0)));
        let table = table(&kernels);
        assert_eq!(table.len(), 12);
        assert_eq!(
            table[0],
            "kernels of the traced steps, of all ranks: 1022 launches in 0.6250 s"
        );
        assert_eq!(
            table[1],
            "   80.0 %      500.000 ms      1000 x product 2 x 2 x 2, 2.0 TFLOP/s"
        );
        assert_eq!(table[11], "    3.6 %       22.727 ms         4 x 2 others");
        assert!(super::table(&[]).is_empty());
    }
}
