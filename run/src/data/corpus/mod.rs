//! The built-in training text, used if no other is given.

/// The New Testament in the King James Version, ASCII. See `SOURCE.md` for its origin.
pub const TEXT: &[u8] = include_bytes!("kjv-new-testament.txt");

#[cfg(test)]
mod tests {
    use super::*;

    /// With another text, runs could be neither resumed nor compared.
    #[test]
    fn the_text_never_changes() {
        let hash = "f05793661065fcffef2540ced619907b76fad9995a7069a7aea16308b65fa4fa";
        assert_eq!(blake3::hash(TEXT).to_string(), hash);
    }
}
