//! Values that people choose by name.

/// The value of `name` in a table such as [`Scaling::ALL`](crate::schedule::Scaling::ALL).
///
/// # Errors
/// Says that the name of `what` is unknown, and which there are.
pub fn by_name<T: Copy>(what: &str, name: &str, all: &[(&'static str, T)]) -> Result<T, String> {
    let known = all.iter().find(|(n, _)| *n == name);
    known.map(|(_, value)| *value).ok_or_else(|| {
        let names: Vec<_> = all.iter().map(|(n, _)| *n).collect();
        format!("unknown {what} `{name}`: choose one of {}", names.join(", "))
    })
}
