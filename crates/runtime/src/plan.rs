//! From a configuration file to everything that is known before anything runs: plugins loaded, routes
//! compiled, and the promise of each send and route.

use crate::promises;
use consign_config::{Catalog, Config, Environment, Place, Problem};
use consign_loader::{LoadError, LoadOptions, Plugins};
use consign_manifest::{ResolvedSource, SinkDeclaration};
use consign_pipeline::Program;
use consign_promise::{RoutePromise, SendPromise};
use std::path::Path;

/// A checked configuration with what it comes to.
pub struct Plan {
    /// As written, secrets filled in where they are set.
    pub config: Config,
    /// What was loaded for it.
    pub plugins: Plugins,
    /// One per adapter, in the order of the configuration.
    pub adapters: Vec<AdapterPlan>,
    /// What an operator should look at; nothing that stops the host.
    pub warnings: Vec<Problem>,
    /// Secrets that are not set: fatal for a run.
    pub unset_secrets: Vec<Problem>,
}

/// One adapter.
pub struct AdapterPlan {
    /// Its name.
    pub name: String,
    /// Level two of its source.
    pub source: ResolvedSource,
    /// What its source takes for itself; no other adapter of the connection may.
    pub claims: Vec<String>,
    /// How long its source may redeliver what it was told was accepted.
    pub redelivery_bound_ms: Option<u64>,
    /// Its compiled routes.
    pub program: std::sync::Arc<Program>,
    /// Its routes' promises, in order.
    pub routes: Vec<RoutePlan>,
}

/// One route.
pub struct RoutePlan {
    /// Its name.
    pub name: String,
    /// Its sends, in order.
    pub sends: Vec<SendPlan>,
    /// Level four, without an inspection.
    pub promise: RoutePromise,
}

/// One send.
pub struct SendPlan {
    /// Level one.
    pub declaration: SinkDeclaration,
    /// Names what it writes to.
    pub target_id: String,
    /// Level two.
    pub promise: SendPromise,
}

/// Where the copies of plugins are kept that are loaded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Copies {
    /// In a temporary folder, gone once they are loaded: nothing is written to `data_dir`.
    Temporary,
    /// In `data_dir/plugins`, for a run.
    InDataDir,
}

/// Reads, checks and compiles a configuration. Loads its plugins, which runs their code.
///
/// # Errors
/// Every fault that was found, each with its place.
pub fn plan(
    path: &Path,
    environment: &dyn Environment,
    copies: Copies,
) -> Result<Plan, Vec<Problem>> {
    plan_with(path, environment, copies, None)
}

/// As [`plan`], for a host that runs: with the plugins it has, where they are all that is wanted. What is
/// loaded stays loaded, and a library is never loaded twice.
///
/// # Errors
/// As [`plan`].
pub fn plan_with(
    path: &Path,
    environment: &dyn Environment,
    copies: Copies,
    loaded: Option<&Plugins>,
) -> Result<Plan, Vec<Problem>> {
    let text = read(path)?;
    let look = consign_config::first_look(path, &text).map_err(|problem| vec![problem])?;
    let wanted: Vec<String> = look
        .connectors
        .iter()
        .chain(&look.functions)
        .map(|named| named.name.to_string())
        .collect();
    let searched: Vec<String> = look
        .plugin_folders
        .iter()
        .map(|folder| folder.display().to_string())
        .collect();
    let lock = path
        .parent()
        .map(|folder| folder.join("plugins.lock"))
        .filter(|lock| lock.exists());
    let enough = loaded.is_some_and(|plugins| {
        let manifests = plugins.manifests();
        let functions = || manifests.iter().flat_map(|manifest| &manifest.functions);
        let mut connectors = look.connectors.iter().map(|named| &named.name);
        let mut named = look.functions.iter().map(|named| &named.name);
        connectors.all(|name| plugins.connector(name).is_some())
            && named.all(|name| functions().any(|function| *name == function.name.as_str()))
    });
    // With nothing wanted the loader would load every plugin it finds.
    let plugins = if wanted.is_empty() {
        Plugins::none()
    } else if let Some(plugins) = loaded.filter(|_| enough) {
        plugins.clone()
    } else {
        let options = LoadOptions {
            folders: look.plugin_folders.clone(),
            wanted,
            lock,
            cache_dir: (copies == Copies::InDataDir).then(|| look.data_dir.join("plugins")),
        };
        Plugins::load(&options).map_err(|error| refused(path, &look, &error))?
    };
    let manifests = plugins
        .manifests()
        .iter()
        .map(|manifest| (**manifest).clone())
        .collect();
    let catalog = Catalog::new(manifests, searched);
    let config = consign_config::parse(path, &text, &catalog)?;
    let (config, unset_secrets) = config.with_secrets(environment);
    let mut problems = Vec::new();
    let mut warnings = config.warnings.clone();
    if config.adapters.is_empty() {
        // A file that a failed deployment cut short must not look like a healthy host.
        let message = "there are no adapters: a host with this configuration carries nothing";
        warnings.push(Problem::warning(&place_of(path), "no_adapters", message));
    }
    let mut adapters = Vec::new();
    for adapter in &config.adapters {
        match Program::compile(adapter) {
            Ok(program) => match promises::adapter(&config, adapter, program, &plugins) {
                Ok((plan, mut notes)) => {
                    warnings.append(&mut notes);
                    adapters.push(plan);
                }
                Err(mut faults) => problems.append(&mut faults),
            },
            Err(mut faults) => problems.append(&mut faults),
        }
    }
    problems.extend(claimed_twice(&config, &adapters));
    if problems.is_empty() {
        Ok(Plan {
            config,
            plugins,
            adapters,
            warnings,
            unset_secrets,
        })
    } else {
        Err(problems)
    }
}

/// Two sources that take the same thing: at a run only one of them would get it.
fn claimed_twice(config: &Config, plans: &[AdapterPlan]) -> Vec<Problem> {
    let mut problems = Vec::new();
    let claimed = |plan: &AdapterPlan| {
        config
            .adapters
            .iter()
            .find(|a| a.name == plan.name.as_str())
    };
    for (number, plan) in plans.iter().enumerate() {
        for (other, claim) in plans
            .iter()
            .take(number)
            .flat_map(|other| other.claims.iter().map(move |claim| (other, claim)))
        {
            if let (Some(first), Some(second)) = (claimed(other), claimed(plan))
                && first.source.connection == second.source.connection
                && plan.claims.contains(claim)
            {
                let message = format!(
                    "{claim} of connection {} is taken by adapter {} already ({}): only one adapter can have it",
                    second.source.connection, first.name, first.source.place
                );
                problems.push(
                    Problem::error(&second.source.place, "claimed_twice", message).help(
                        "give one of them a path of its own, or make them one adapter with two routes",
                    ),
                );
            }
        }
    }
    problems
}

/// A plugin that was refused, at the place where the configuration asks for it, or at its beginning.
fn refused(path: &Path, look: &consign_config::FirstLook, error: &LoadError) -> Vec<Problem> {
    let start = place_of(path);
    let problem = |refusal: &consign_loader::Refusal| {
        let asked = look
            .connectors
            .iter()
            .chain(&look.functions)
            .find(|named| refusal.message.contains(&format!("uses {} ", named.name)));
        let place = asked.map_or(&start, |named| named.name.place());
        let file = refusal
            .path
            .file_name()
            .and_then(|name| name.to_str())
            .unwrap_or_default();
        let message = if file.ends_with(".so") {
            format!("{file}: {}", refusal.message)
        } else {
            refusal.message.clone()
        };
        Problem::error(place, refusal.code, message)
    };
    error.refusals().iter().map(problem).collect()
}

fn place_of(path: &Path) -> Place {
    Place {
        file: path.display().to_string().into(),
        line: 1,
        column: 1,
    }
}

fn read(path: &Path) -> Result<String, Vec<Problem>> {
    std::fs::read_to_string(path).map_err(|error| {
        let message = match error.kind() {
            std::io::ErrorKind::NotFound => "there is no such file".to_owned(),
            std::io::ErrorKind::InvalidData => "the file is not UTF-8 text".to_owned(),
            _ => format!("cannot be read: {error}"),
        };
        vec![Problem::error(&place_of(path), "unreadable", message)]
    })
}
