//! Resuming from a checkpoint: the settings that may change, and those that must not.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};
use chimera_core::engine::Counts;
use chimera_core::interchange::{from_json, to_json};
use chimera_core::stage::Data;
use chimera_core::timetable::Timetable;
use chimera_formats::SpecialIds;
use chimera_formats::checkpoint::{Checkpoint, Digest, FORMAT, Manifest, Saver, Store};
use chimera_settings::{Config, OPTIONS, Opt, Resume};
use serde::{Deserialize, Serialize};

use super::dir::history::{
    VALIDATION, change, changes, has_validation, other_split, other_staleness, planned_checkpoint,
    settings,
};
use super::{Run, Subject};

/// The beginning of the ranks of a job, for a process that replaces a dead rank.
#[derive(Serialize, Deserialize, Clone, Debug)]
pub struct Beginning {
    /// The first step that is trained.
    pub first_step: u64,
    /// BLAKE3 of the initial weights, or a note that they are drawn at random.
    pub(super) weights: String,
    /// The checkpoint that the weights come from.
    checkpoint: Option<PathBuf>,
    /// The timetable that a search has found.
    pub(super) timetable: Option<String>,
    /// The tokens that begin and end a text, as the initial model names them.
    #[serde(default)]
    special_ids: Option<SpecialIds>,
}

impl Beginning {
    /// Returns it for a process that has the files of another one where `local` says.
    pub(super) fn at(self, local: impl Fn(&Path) -> PathBuf) -> Beginning {
        Beginning { checkpoint: self.checkpoint.as_deref().map(local), ..self }
    }
}

/// The most samples that the hash of a step covers.
const N_HASHED: u64 = 64;

impl<S: Subject> Run<S> {
    /// Begins where a checkpoint ends, or else at the start. Returns a description of each setting that
    /// changes from there on.
    ///
    /// # Errors
    /// If it is of another training: other sizes, seed or data, or another number of samples per step.
    pub fn resume(&mut self, checkpoint: Option<Checkpoint>) -> Result<Vec<String>> {
        let Some(checkpoint) = checkpoint else {
            self.course.begin(0, self.subject.chain())?;
            self.initial = self.subject.open_initial(&self.course.config)?;
            return Ok(Vec::new());
        };
        let manifest = checkpoint.manifest();
        let place = checkpoint.path().display();
        let now = self.settings();
        let changed = |resume| {
            changes(resume, &manifest.settings, (self.config(), &now), "in the checkpoint")
        };
        let mut conflicts = changed(Resume::Fixed);
        conflicts.extend(other_split(&manifest.settings, &now, "in the checkpoint"));
        let (was, is) = (manifest.samples_per_step, self.course.samples_per_step());
        if was != is {
            let product = "width * micro-batches * micro-batch-size";
            conflicts.push(format!("{product}: {was} in the checkpoint, {is} now"));
        }
        if let Some(other) = self.other_data(manifest).filter(|_| conflicts.is_empty()) {
            conflicts.push(format!("data: {other}"));
        }
        if !conflicts.is_empty() {
            bail!("{place} is of another training:\n  {}", conflicts.join("\n  "));
        }
        ensure!(
            manifest.step <= self.config().training.steps,
            "{place} has {} steps already: choose --steps above that",
            manifest.step
        );
        let mut notes = changed(Resume::Told);
        if has_validation(&now) {
            notes.extend(change(VALIDATION, &manifest.settings, &now, "in the checkpoint"));
        }
        notes.extend(other_staleness(&manifest.settings, &now, "in the checkpoint"));
        notes.sort();
        let found = found(manifest, &now)?;
        if found.is_some() && found != self.course.found {
            let planned = self.subject.plan(self.config().clone(), found);
            self.course = planned.with_context(|| format!("the timetable in {place}"))?;
        }
        self.course.begin(manifest.step, self.subject.chain())?;
        (self.start, self.initial) = (Some(checkpoint), None);
        Ok(notes)
    }

    /// Saves checkpoints as the settings say. Calls `warn` for files that could not be saved.
    pub fn save_into(&mut self, store: Store, warn: impl Fn(&str) + Send + Sync + 'static) {
        let store = store.keeping(self.course.config.checkpoints.keep).bound();
        self.saver = Some(Saver::new(store, self.course.config.checkpoints.save_every, warn));
    }

    /// Returns the first step that is trained.
    pub fn first_step(&self) -> u64 {
        let joined = self.joined.as_ref().map(|beginning| beginning.first_step);
        let resumed = || self.start.as_ref().map(|checkpoint| checkpoint.manifest().step);
        joined.or_else(resumed).unwrap_or(0)
    }

    /// Returns the number of windows without a border that were trained again before the first step.
    pub fn n_repeated_before(&self) -> u64 {
        self.start.as_ref().map_or(0, |checkpoint| checkpoint.manifest().windows.n_repeated())
    }

    /// Returns the beginning of the run, for a process that joins it later.
    pub fn beginning(&self) -> Beginning {
        Beginning {
            first_step: self.first_step(),
            weights: self.weights_hash(),
            checkpoint: self.start.as_ref().map(|checkpoint| checkpoint.path().to_path_buf()),
            timetable: self.course.found.as_ref().map(to_json),
            special_ids: self.said_ids(),
        }
    }

    /// Begins as the other ranks of a job have begun. If some `are_ahead`, the weights come from them.
    ///
    /// # Errors
    /// If their checkpoint is needed and cannot be used.
    pub fn join(&mut self, beginning: &Beginning, are_ahead: bool) -> Result<()> {
        if !are_ahead {
            let checkpoint = beginning.checkpoint.as_deref().map(Checkpoint::open).transpose()?;
            return self.resume(checkpoint).map(drop);
        }
        self.course.begin(beginning.first_step, self.subject.chain())?;
        (self.joined, self.initial) = (Some(beginning.clone()), None);
        Ok(())
    }

    /// Returns the checkpoint that it continues from.
    pub fn begins_at(&self) -> Option<&Path> {
        self.start.as_ref().map(Checkpoint::path)
    }

    /// Returns true if a run that stops before its first step leaves all that it needs to begin there again.
    pub(super) fn can_begin_again(&self) -> bool {
        self.saver
            .as_ref()
            .is_none_or(|saver| self.begins_at().is_none_or(|at| saver.store().holds(at)))
    }

    /// Returns the manifest of a checkpoint at `step`, without its files.
    pub(super) fn manifest(&self, step: u64, counts: Counts) -> Manifest {
        let sampled = self.trained_step(step);
        Manifest {
            format: FORMAT,
            written_by: format!("chimera {}", env!("CARGO_PKG_VERSION")),
            step,
            updates: counts.updates,
            skipped: counts.skipped,
            windows: counts.windows,
            samples_per_step: self.course.samples_per_step(),
            next_samples: self.samples_of(sampled),
            samples_step: (sampled != step).then_some(sampled),
            data: self.digest().cloned(),
            settings: self.settings(),
            optimizer_state: self.optimizer_state(),
            special_ids: self.said_ids(),
            end_of_text: self.subject.document_end(),
            timetable: self.course.found.as_ref().map(to_json),
            shards: Vec::new(),
        }
    }

    /// Returns all settings, with the way to multiply bf16 that its devices have.
    fn settings(&self) -> BTreeMap<String, String> {
        let mut all = settings(self.config());
        if let Some(way) = self.subject.bf16_products() {
            all.insert("bf16-products".into(), format!("{way:?}"));
        }
        all
    }

    /// Returns the tokens that begin and end a text, as the model says that the training began with, if any.
    pub(super) fn said_ids(&self) -> Option<SpecialIds> {
        if let Some(joined) = &self.joined {
            return joined.special_ids.clone();
        }
        match &self.start {
            Some(checkpoint) => checkpoint.manifest().special_ids.clone(),
            None => self.initial.as_ref().map(|initial| initial.ids().clone()),
        }
    }

    /// Returns the names of the optimizer's state tensors over all parameters, sorted.
    fn optimizer_state(&self) -> Vec<String> {
        let (params, optimizer) = (self.subject.params(), &self.config().training.optimizer);
        let mut names: Vec<String> = Vec::new();
        for name in params.iter().flatten().flat_map(|param| optimizer.kept(param)) {
            if names.iter().all(|known| known != name) {
                names.push((*name).into());
            }
        }
        names.sort();
        names
    }

    /// Describes the difference between the data and that of a checkpoint, if there is one.
    fn other_data(&self, manifest: &Manifest) -> Option<String> {
        let now = self.digest();
        match &manifest.data {
            Some(was) if now != Some(was) => Some(match now {
                Some(now) if now.tokens != was.tokens => {
                    format!("{} tokens in the checkpoint, {} now", was.tokens, now.tokens)
                }
                Some(now) if now.blake3 == was.blake3 => other_targets(was, now).into(),
                _ => "other tokens than in the checkpoint".into(),
            }),
            _ => {
                let step = manifest.samples_step.unwrap_or(manifest.step);
                let is_other = self.samples_of(step) != manifest.next_samples;
                is_other.then(|| format!("other samples in step {step} than in the checkpoint"))
            }
        }
    }

    /// Returns the digest of the data, if it is known.
    fn digest(&self) -> Option<&Digest> {
        self.subject.digest()?.ok()
    }

    /// Returns BLAKE3 of a step's first samples.
    pub(super) fn samples_of(&self, step: u64) -> String {
        let n_samples = self.course.samples_per_step().min(N_HASHED);
        samples_hash::<S>(&*self.subject.samples(&self.course), step, n_samples)
    }

    /// Returns the step, or the last one that is trained if it is beyond: data need not have later samples.
    pub(super) fn trained_step(&self, step: u64) -> u64 {
        step.min(self.config().training.steps.saturating_sub(1))
    }
}

/// Returns BLAKE3 of the first samples of a step.
pub(super) fn samples_hash<S: Subject>(
    data: &dyn Data<S::Item>,
    step: u64,
    n_samples: u64,
) -> String {
    let (mut input, mut target) = (Vec::new(), Vec::new());
    let mut hasher = blake3::Hasher::new();
    for sample in 0..n_samples {
        input.clear();
        target.clear();
        // Missing data hashes like unreadable data; a run that needs it fails by itself.
        if let Err(error) = data.sample(step, sample, &mut input, &mut target) {
            return format!("unreadable: {error}");
        }
        S::hash(&input, &mut hasher);
        S::hash(&target, &mut hasher);
    }
    hasher.finalize().to_string()
}

/// Describes the difference between the targets of the data and those of a checkpoint with the same tokens.
fn other_targets(was: &Digest, now: &Digest) -> &'static str {
    match (&was.targets, &now.targets) {
        (None, _) => {
            "its .targets file excludes some tokens, but in the checkpoint all were targets"
        }
        (_, None) => {
            "all tokens are targets, but in the checkpoint some were not: its .targets file is no longer read"
        }
        _ => "its .targets file marks other tokens as targets than in the checkpoint",
    }
}

/// Returns the timetable that a search found before the checkpoint that the run resumes from, to avoid another search.
pub(super) fn kept(config: &Config) -> Result<Option<Timetable>> {
    let Some(resume) = &config.checkpoints.resume else { return Ok(None) };
    match planned_checkpoint(resume, config.output.out.as_deref())? {
        Some((_, manifest)) => found(&manifest, &settings(config)),
        None => Ok(None),
    }
}

/// Returns the timetable that a search found before a checkpoint, if the settings `now` would lead to the same search.
fn found(manifest: &Manifest, now: &BTreeMap<String, String>) -> Result<Option<Timetable>> {
    let Some(found) = &manifest.timetable else { return Ok(None) };
    let is_other = |o: &Opt| o.is_searched && change(o.name, &manifest.settings, now, "").is_some();
    if OPTIONS.iter().any(is_other) { Ok(None) } else { Ok(Some(from_json(found.as_bytes())?)) }
}

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::sync::atomic::AtomicBool;

    use chimera_core::schedule::{Shape, find};
    use chimera_settings::Layers;

    use super::*;
    use crate::data::prepare;
    use crate::data::{Preparation, PreparedFiles};
    use crate::processor::CpuRun;
    use crate::run::Here;
    use crate::run::machine::outside::OnDisk;

    /// Checkpoints are written after hours of training, when the data's description may be gone.
    #[test]
    fn the_end_of_documents_is_known_from_the_start() {
        let folder = tempfile::TempDir::new().unwrap();
        let [texts, data] = ["texts", "data.bin"].map(|name| folder.path().join(name));
        std::fs::create_dir(&texts).unwrap();
        std::fs::write(texts.join("1.txt"), "a text ".repeat(40)).unwrap();
        let how = Preparation {
            tokenizer: "bytes".into(),
            field: "text".into(),
            prompt_field: None,
            chat: false,
            chat_template: None,
            end_of_text: None,
            begin_of_text: false,
        };
        prepare(&[texts], &how, &PreparedFiles::new(&data), |_| ()).unwrap();
        let settings = "--depth 1 --layers 1 --hidden 8 --heads 2 --context 8 --threads 1";
        let layers = Layers::parse(&format!("{settings} --data {}", data.display()));
        let run = CpuRun::prepare(layers.unwrap().resolve(&OnDisk).unwrap()).unwrap();
        std::fs::remove_file(folder.path().join("data.bin.json")).unwrap();
        assert_eq!(run.manifest(0, Counts::default()).end_of_text, Some(0));
        assert_eq!(run.special_ids().ends(), [0]);
    }

    /// Another processor might choose another way.
    #[test]
    fn a_resumed_run_multiplies_bf16_as_before() {
        let folder = tempfile::TempDir::new().unwrap();
        let path = folder.path().join("checkpoints/step-00000001");
        let prepare = |options: &str| {
            let layers = Layers::parse(&format!(
                "--depth 1 --layers 1 --hidden 8 --heads 2 --context 8 --steps 2 --save-every 1 --threads 1 \
                 --precision bf16 {options}"
            ));
            CpuRun::prepare(layers.unwrap().resolve(&OnDisk).unwrap()).unwrap()
        };
        let mut run = prepare("--bf16-products dot");
        run.save_into(Store::of(folder.path()), |_| ());
        run.train(&AtomicBool::new(false), |_| Ok(())).unwrap();
        let resumed = |way: &str| {
            let mut run = prepare(&format!("--resume {} {way}", path.display()));
            let notes = run.resume(Some(Checkpoint::open(&path).unwrap())).unwrap();
            (run.devices().models(), notes)
        };
        let [dot, fma] = ["dot", "fma"].map(|way| vec![format!("cpu with bf16-products {way}")]);
        assert_eq!(resumed(""), (dot, Vec::new()));
        let note = "bf16-products: \"dot\" in the checkpoint, \"fma\" now".to_string();
        assert_eq!(resumed("--bf16-products auto"), (fma, vec![note]));
    }

    /// A second search might find another timetable.
    #[test]
    fn the_timetable_that_was_found_goes_on() {
        let folder = tempfile::TempDir::new().unwrap();
        let path = folder.path().join("checkpoints/step-00000001");
        let prepare = |search_time: f64, found, resume: Option<&Path>| {
            let resume = resume.map(|path| format!("--resume {}", path.display()));
            let layers = Layers::parse(&format!(
                "--schedule auto --depth 2 --layers 2 --hidden 8 --heads 2 --context 8 --micro-batches 4 --steps 2 \
                 --save-every 1 --threads 1 --search-time {search_time} {}",
                resume.unwrap_or_default()
            ));
            let config = layers.unwrap().resolve(&OnDisk).unwrap();
            let here = Here { part: 1.0, own: None };
            CpuRun::prepare_with(config, found, here).unwrap()
        };
        let gpipe = find("gpipe").unwrap().timetable(&Shape::new(2, 4)).unwrap();
        let mut run = prepare(0.1, Some(gpipe), None);
        run.save_into(Store::of(folder.path()), |_| ());
        run.train(&AtomicBool::new(false), |_| Ok(())).unwrap();
        for is_foreseen in [true, false] {
            let resumed = |search_time| {
                let mut run = prepare(search_time, None, is_foreseen.then_some(&path));
                let has_searched = run.search().is_some();
                run.resume(Some(Checkpoint::open(&path).unwrap())).unwrap();
                (run.program().fingerprint(), has_searched)
            };
            assert_eq!(resumed(0.1), (run.program().fingerprint(), !is_foreseen));
            let (other, has_searched) = resumed(0.2);
            assert!(has_searched && other != run.program().fingerprint());
        }
    }
}
