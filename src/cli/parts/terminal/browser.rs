//! Opens a page in a browser.

use std::ffi::{OsStr, OsString};
use std::process::{Command, Stdio};

use super::console::warn;

/// Opens a page, by its path or address, in the browser that `BROWSER` names, otherwise in the one
/// of the system. Warns if that fails.
pub(crate) fn open(page: impl AsRef<OsStr>) {
    let page = page.as_ref();
    let browser = std::env::var_os("BROWSER").filter(|name| !name.is_empty());
    if let Err(error) = start(browser, page) {
        let page = page.display();
        warn(&format!("no browser opens {page}: {error}: open it by hand, or name one in BROWSER"));
    }
}

/// Starts a browser, and does not wait for it.
fn start(browser: Option<OsString>, page: &OsStr) -> std::io::Result<()> {
    let mut command = match browser {
        Some(name) => Command::new(name),
        None if cfg!(target_os = "macos") => Command::new("open"),
        None if cfg!(windows) => Command::new("explorer"),
        None => Command::new("xdg-open"),
    };
    command.arg(page).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    command.spawn().map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_browser_that_is_missing_is_an_error() {
        let page = OsStr::new("report.html");
        assert!(start(Some("/none/such-browser".into()), page).is_err());
        assert!(cfg!(windows) || start(Some("true".into()), page).is_ok());
    }
}
