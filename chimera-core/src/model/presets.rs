//! Models by name.

use super::Gpt2Config;

/// A model with a name.
#[derive(Clone, Debug, PartialEq)]
pub struct Preset {
    /// What the user types.
    pub name: &'static str,
    /// What it is, in one line.
    pub about: &'static str,
    /// Its sizes.
    pub config: Gpt2Config,
}

impl Preset {
    /// The preset called `name`.
    pub fn named(name: &str) -> Option<&'static Preset> {
        PRESETS.iter().find(|preset| preset.name == name)
    }
}

/// All presets, the default first.
pub const PRESETS: &[Preset] = &[
    // Eight small blocks rather than four larger ones, so that it can be cut into up to eight stages.
    Preset {
        name: "tiny",
        about: "956,352 parameters on bytes: trains in two minutes on two CPU cores",
        config: gpt2(8, 96, 6, 128, 256, false),
    },
    Preset {
        name: "gpt2-124m",
        about: "GPT-2 small, 124,439,808 parameters (Radford et al., 2019)",
        config: gpt2(12, 768, 12, 1024, 50257, true),
    },
    Preset {
        name: "gpt2-355m",
        about: "GPT-2 medium, 354,823,168 parameters (Radford et al., 2019)",
        config: gpt2(24, 1024, 16, 1024, 50257, true),
    },
    Preset {
        name: "gpt2-774m",
        about: "GPT-2 large, 774,030,080 parameters (Radford et al., 2019)",
        config: gpt2(36, 1280, 20, 1024, 50257, true),
    },
    Preset {
        name: "gpt2-1558m",
        about: "GPT-2 XL, 1,557,611,200 parameters (Radford et al., 2019)",
        config: gpt2(48, 1600, 25, 1024, 50257, true),
    },
    Preset {
        name: "gpt2-64",
        about: "64 layers, 1,389,327,360 parameters, untied: the workload of the Chimera paper (SC'21)",
        config: gpt2(64, 1280, 20, 1024, 50257, false),
    },
];

const fn gpt2(
    layers: usize,
    hidden: usize,
    heads: usize,
    context: usize,
    vocab: usize,
    tied: bool,
) -> Gpt2Config {
    Gpt2Config { layers, hidden, heads, context, vocab, tied }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn presets_have_the_published_sizes() {
        let counts: Vec<_> =
            PRESETS.iter().map(|preset| (preset.name, preset.config.n_params())).collect();
        assert_eq!(
            counts,
            [
                ("tiny", 956_352),
                ("gpt2-124m", 124_439_808),
                ("gpt2-355m", 354_823_168),
                ("gpt2-774m", 774_030_080),
                ("gpt2-1558m", 1_557_611_200),
                ("gpt2-64", 1_389_327_360),
            ]
        );
    }

    #[test]
    fn a_layer_of_the_paper_has_its_size() {
        let all = &Preset::named("gpt2-64").unwrap().config;
        let fewer = Gpt2Config { layers: 63, ..all.clone() };
        assert_eq!(all.n_params() - fewer.n_params(), 19_677_440);
    }

    #[test]
    fn presets_are_valid_and_found_by_name() {
        for preset in PRESETS {
            assert_eq!(preset.config.validate(), Ok(()));
            assert_eq!(Preset::named(preset.name), Some(preset));
        }
        assert_eq!(Preset::named("gpt5"), None);
    }
}
