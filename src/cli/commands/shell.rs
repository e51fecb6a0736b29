//! `chimera completions` and `chimera man`: what a shell and its manual want to know of the command.

use std::path::PathBuf;

use anyhow::{Context, Result};
use clap::Args;
use clap_complete::Shell;

use crate::cli::examples::command;
use crate::cli::parts::console::print;

/// Prints completions for a shell, for example into ~/.local/share/bash-completion/completions/chimera
#[derive(Args)]
pub(crate) struct Completions {
    /// The shell
    shell: Shell,
}

/// Writes the manual pages of all subcommands into a folder, for example ~/.local/share/man/man1
#[derive(Args)]
pub(crate) struct Man {
    /// The folder, which is made if it is not there
    #[arg(value_name = "DIR")]
    folder: PathBuf,
}

impl Completions {
    pub(crate) fn run(self) -> Result<()> {
        let mut script = Vec::new();
        clap_complete::generate(self.shell, &mut command(), "chimera", &mut script);
        print(String::from_utf8_lossy(&script))
    }
}

impl Man {
    pub(crate) fn run(self) -> Result<()> {
        let write = || {
            std::fs::create_dir_all(&self.folder)?;
            clap_mangen::generate_to(command(), &self.folder)
        };
        write().with_context(|| format!("cannot write manual pages to {}", self.folder.display()))
    }
}
