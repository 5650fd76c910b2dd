//! The loaded plugins of a host.

use crate::call::{self, Failure};
use crate::check;
use crate::connection::Connection;
use crate::function::{FunctionHandle, OpenFunction};
use crate::host::{self, PluginMetric};
use crate::inspect::{self, PluginFile};
use crate::library;
use crate::lock::Lock;
use crate::refusal::{LoadError, Refusal};
use crate::registry::{CompletionCounts, REGISTRY};
use consign_abi::json::{self, OpenConnection};
use consign_abi::{FailureKind, PluginRef};
use consign_manifest::{
    ConnectorManifest, Manifest, OperationDeclaration, OperationManifest, PluginKind,
    ResolveRequest, Resolved, ResolvedSource, SinkDeclaration, SourceAnswer,
};
use parking_lot::Mutex;
use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::LazyLock;
use std::time::Duration;

/// Where plugins are looked for, and which.
#[derive(Debug, Clone, Default)]
pub struct LoadOptions {
    /// Folders with `.so` files, or single files.
    pub folders: Vec<PathBuf>,
    /// Names of connectors, processors, transforms and error handlers the configuration uses;
    /// nothing else is loaded. Empty: everything.
    pub wanted: Vec<String>,
    /// `plugins.lock`; a file that does not exist pins nothing.
    pub lock: Option<PathBuf>,
    /// Where copies are kept that are loaded; `None` uses a temporary folder.
    pub cache_dir: Option<PathBuf>,
}

/// One loaded plugin.
pub(crate) struct Loaded {
    pub vtable: PluginRef,
    pub manifest: Arc<Manifest>,
    pub file: PluginFile,
    number: u64,
    users: Mutex<usize>,
}

impl fmt::Debug for Loaded {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "plugin {} {}", self.manifest.name, self.manifest.version)
    }
}

/// Every plugin this process has loaded, by digest: a library's root exists once.
static LOADED: LazyLock<Mutex<HashMap<String, Arc<Loaded>>>> = LazyLock::new(Mutex::default);

/// Loaded plugins. Clones share them; they stay loaded until the process ends.
#[derive(Clone, Debug)]
pub struct Plugins {
    loaded: Arc<Vec<Arc<Loaded>>>,
}

/// What a configuration comes to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ResolvedOperation {
    /// For a sink.
    Sink(Resolved),
    /// For a source.
    Source(ResolvedSource),
}

/// Level two, never better than level one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Resolution {
    /// What it comes to.
    pub operation: ResolvedOperation,
    /// What the plugin claimed beyond its declaration and did not get, one sentence each: an
    /// event of the host.
    pub clamped: Vec<String>,
    /// What a source takes for itself; see [`SourceAnswer::claims`].
    pub claims: Vec<String>,
}

impl Plugins {
    /// No plugins at all: a configuration without connections needs none.
    #[must_use]
    pub fn none() -> Self {
        Self {
            loaded: Arc::default(),
        }
    }

    /// Finds, checks and loads plugins. Blocking: call it before the runtime starts, or through
    /// `spawn_blocking`.
    ///
    /// # Errors
    /// Every file that would have to be loaded and can't be, every wanted name nobody provides,
    /// every name two files provide. Nothing was started then.
    pub fn load(options: &LoadOptions) -> Result<Self, LoadError> {
        let mut refusals = Vec::new();
        let lock = options.lock.as_deref().map(Lock::read).transpose();
        let lock = lock.unwrap_or_else(|refusal| {
            refusals.push(refusal);
            None
        });
        let chosen = choose(options, &mut refusals);
        let mut loaded = Vec::new();
        for (file, bytes) in chosen {
            if let Some(Some(lock)) = &lock
                && let Err(refusal) = lock.check(&file)
            {
                refusals.push(refusal);
                continue;
            }
            match load_one(&file, &bytes, options.cache_dir.as_deref()) {
                Ok(plugin) => loaded.push(plugin),
                Err(more) => refusals.extend(more),
            }
        }
        if !refusals.is_empty() {
            return Err(LoadError::new(refusals));
        }
        if let Some(folder) = &options.cache_dir {
            let digests: Vec<&str> = loaded.iter().map(|p| p.file.digest.as_str()).collect();
            library::tidy(folder, &digests);
        }
        for plugin in &loaded {
            let mut users = plugin.users.lock();
            if *users == 0
                && let Err(refusal) = library::init(plugin.vtable, plugin.number, &plugin.file)
            {
                refusals.push(refusal);
                continue;
            }
            *users += 1;
        }
        if refusals.is_empty() {
            Ok(Self {
                loaded: Arc::new(loaded),
            })
        } else {
            Err(LoadError::new(refusals))
        }
    }

    /// The manifests.
    #[must_use]
    pub fn manifests(&self) -> Vec<Arc<Manifest>> {
        self.loaded
            .iter()
            .map(|p| Arc::clone(&p.manifest))
            .collect()
    }

    /// The files, in the order of [`Plugins::manifests`].
    #[must_use]
    pub fn files(&self) -> Vec<PluginFile> {
        self.loaded.iter().map(|p| p.file.clone()).collect()
    }

    /// An operation by its id, and its connector.
    #[must_use]
    pub fn operation(&self, id: &str) -> Option<(ConnectorManifest, OperationManifest)> {
        self.loaded
            .iter()
            .find_map(|p| p.manifest.operation(id))
            .map(|(connector, operation)| (connector.clone(), operation.clone()))
    }

    /// A connector by its name.
    #[must_use]
    pub fn connector(&self, name: &str) -> Option<ConnectorManifest> {
        self.with_connector(name).and_then(|plugin| {
            let mut connectors = plugin.manifest.connectors.iter();
            connectors.find(|c| c.name == name).cloned()
        })
    }

    fn with_connector(&self, name: &str) -> Option<&Arc<Loaded>> {
        self.loaded
            .iter()
            .find(|p| p.manifest.connectors.iter().any(|c| c.name == name))
    }

    /// What a declaration comes to for one configuration. Pure; contacts nothing. Never better
    /// than the declaration.
    ///
    /// # Errors
    /// The plugin can't read the configuration, or answers nonsense.
    pub fn resolve(&self, request: &ResolveRequest) -> Result<Resolution, Failure> {
        let found = self.loaded.iter().find_map(|plugin| {
            let (_, operation) = plugin.manifest.operation(&request.operation)?;
            Some((plugin, operation))
        });
        let Some((plugin, operation)) = found else {
            let message = format!("no loaded plugin has operation {}", request.operation);
            return Err(Failure::new(
                FailureKind::Config,
                "no_such_operation",
                message,
            ));
        };
        let bytes = crate::connection::json_bytes(request)?;
        let answer = (plugin.vtable.resolve())(bytes);
        let bad = |error: serde_json::Error| {
            REGISTRY.count_garbage();
            Failure::other(
                "bad_reply",
                format!("the plugin's answer to resolve is unreadable: {error}"),
            )
        };
        let value = match serde_json::from_slice(&answer).map_err(bad)? {
            json::Answer::Ok(value) => value,
            json::Answer::Failure(failure) => {
                let kind = FailureKind::from_code(failure.kind);
                return Err(Failure::new(kind, failure.code, failure.message));
            }
        };
        let mut clamped = Vec::new();
        let mut claims = Vec::new();
        let operation = match &operation.declaration {
            OperationDeclaration::Sink(declaration) => {
                let mut resolved: Resolved = serde_json::from_value(value).map_err(bad)?;
                clamp(&request.operation, declaration, &mut resolved, &mut clamped);
                ResolvedOperation::Sink(resolved)
            }
            OperationDeclaration::Source(declaration) => {
                let answer: SourceAnswer = serde_json::from_value(value).map_err(bad)?;
                let mut resolved = answer.resolved;
                claims = answer.claims;
                if resolved.delivery != declaration.delivery {
                    clamped.push(format!(
                        "{} resolves to delivery {:?} and declares {:?}",
                        request.operation, resolved.delivery, declaration.delivery
                    ));
                    resolved.delivery = declaration.delivery;
                }
                ResolvedOperation::Source(resolved)
            }
        };
        Ok(Resolution {
            operation,
            clamped,
            claims,
        })
    }

    /// Opens a connection. Dropping the future cancels.
    ///
    /// # Errors
    /// What the connector says; `no_such_connector` when none is loaded.
    pub async fn open_connection(
        &self,
        request: OpenConnection,
        deadline: Duration,
    ) -> Result<Connection, Failure> {
        let Some(plugin) = self.with_connector(&request.connector) else {
            let message = format!("no loaded plugin has connector {}", request.connector);
            return Err(Failure::new(
                FailureKind::Config,
                "no_such_connector",
                message,
            ));
        };
        Connection::open(Arc::clone(plugin), &request, deadline).await
    }

    /// Opens a processor, transform or error handler.
    ///
    /// # Errors
    /// What it says; `no_such_function` when none is loaded.
    pub async fn open_function(
        &self,
        request: OpenFunction,
        deadline: Duration,
    ) -> Result<FunctionHandle, Failure> {
        let of =
            |plugin: &&Arc<Loaded>| has_function(&plugin.manifest, request.kind, &request.name);
        let Some(plugin) = self.loaded.iter().find(of) else {
            let message = format!("no loaded plugin has {:?} {}", request.kind, request.name);
            return Err(Failure::new(
                FailureKind::Config,
                "no_such_function",
                message,
            ));
        };
        FunctionHandle::open(Arc::clone(plugin), request, deadline).await
    }

    /// Completions that were ignored, in the whole process.
    #[must_use]
    pub fn counts(&self) -> CompletionCounts {
        REGISTRY.counts()
    }

    /// Metrics of all plugins in the process.
    #[must_use]
    pub fn metrics(&self) -> Vec<PluginMetric> {
        host::metrics()
    }

    /// Tells every plugin that nobody else uses to drop everything. Completions that come
    /// afterwards are counted and ignored. Close connections first. The clones of this are of no
    /// use afterwards.
    pub async fn shutdown(&self, deadline: Duration) {
        let generation = REGISTRY.issue();
        for plugin in self.loaded.iter() {
            let last = {
                let mut users = plugin.users.lock();
                *users = users.saturating_sub(1);
                *users == 0
            };
            if last {
                let shutdown = |call| (plugin.vtable.shutdown())(call);
                let ended = call::call(plugin.vtable, generation, deadline, shutdown).await;
                if let Err(failure) = ended {
                    tracing::warn!(plugin = plugin.manifest.name, %failure, "the plugin did not shut down");
                }
            }
        }
    }
}

fn has_function(manifest: &Manifest, kind: PluginKind, name: &str) -> bool {
    let mut functions = manifest.functions.iter();
    functions.any(|f| f.kind == kind && f.name == name)
}

/// Brings a resolved promise down to its declaration.
fn clamp(
    operation: &str,
    declaration: &SinkDeclaration,
    resolved: &mut Resolved,
    clamped: &mut Vec<String>,
) {
    // Promises are ordered by declaration in the enum, the strongest first.
    if (resolved.promise as u8) < (declaration.promise as u8) {
        clamped.push(format!(
            "{operation} resolves to {} and declares {}",
            resolved.promise, declaration.promise
        ));
        resolved.promise = declaration.promise;
        resolved.repeat = declaration.repeat.kind;
        resolved.reason = format!("the declaration promises {}", declaration.promise);
    }
    if declaration.unconfirmed && !resolved.unconfirmed {
        clamped.push(format!(
            "{operation} resolves to a confirmed promise and declares an unconfirmed one"
        ));
        resolved.unconfirmed = true;
    }
}

/// Reads the files and chooses those to load.
fn choose(options: &LoadOptions, refusals: &mut Vec<Refusal>) -> Vec<(PluginFile, Vec<u8>)> {
    let mut readable = Vec::new();
    let mut unreadable = Vec::new();
    for path in files(&options.folders, refusals) {
        match inspect::read_file(&path) {
            Ok(found) => readable.push(found),
            Err(faults) => unreadable.extend(faults.into_all()),
        }
    }
    let everything = options.wanted.is_empty();
    let mut by_name: BTreeMap<String, Vec<usize>> = BTreeMap::new();
    for (place, (file, _)) in readable.iter().enumerate() {
        for name in &file.note.provides {
            by_name.entry(name.clone()).or_default().push(place);
        }
    }
    let mut missing = false;
    for name in &options.wanted {
        if !by_name.contains_key(name) {
            missing = true;
            refusals.push(nobody_provides(name, options, &by_name, &unreadable));
        }
    }
    for (name, places) in &by_name {
        let wanted = everything || options.wanted.contains(name);
        if let (true, [first, second, ..]) = (wanted, places.as_slice())
            && let (Some((first, _)), Some((second, _))) =
                (readable.get(*first), readable.get(*second))
        {
            refusals.push(Refusal::new(
                "provided_twice",
                &second.path,
                format!(
                    "it provides {name} and so does {}: remove one of them with `rm`",
                    first.path.display()
                ),
            ));
        }
    }
    // A file that can't be read is in the way only when it may be the one that is missing.
    if everything || missing {
        refusals.extend(unreadable);
    }
    readable
        .into_iter()
        .filter(|(file, _)| {
            everything
                || file
                    .note
                    .provides
                    .iter()
                    .any(|p| options.wanted.contains(p))
        })
        .collect()
}

fn nobody_provides(
    name: &str,
    options: &LoadOptions,
    by_name: &BTreeMap<String, Vec<usize>>,
    unreadable: &[Refusal],
) -> Refusal {
    let folder = options.folders.first().cloned().unwrap_or_default();
    let found: Vec<&str> = by_name.keys().map(String::as_str).collect();
    let found = match (found.is_empty(), unreadable.is_empty()) {
        (true, true) => "no plugin is there".to_owned(),
        (true, false) => "no plugin there can be read".to_owned(),
        _ => format!("the plugins there provide {}", found.join(", ")),
    };
    Refusal::new(
        "no_plugin",
        &folder,
        format!(
            "the configuration uses {name} and {found}: put libconsign_plugin_{name}.so there, or correct `plugins:` or `connector:` and run `consign check`"
        ),
    )
}

/// The `.so` files of the folders, sorted.
fn files(folders: &[PathBuf], refusals: &mut Vec<Refusal>) -> Vec<PathBuf> {
    let mut files = Vec::new();
    for folder in folders {
        if folder.is_file() {
            files.push(folder.clone());
            continue;
        }
        match std::fs::read_dir(folder) {
            Ok(entries) => files.extend(
                entries
                    .filter_map(Result::ok)
                    .map(|entry| entry.path())
                    .filter(|path| path.extension().is_some_and(|e| e == "so")),
            ),
            Err(error) => refusals.push(Refusal::new(
                "no_folder",
                folder,
                format!(
                    "the folder can't be read ({error}) and the configuration looks for plugins there: create it with `mkdir -p {}`, or correct `plugins:`",
                    folder.display()
                ),
            )),
        }
    }
    files.sort();
    files.dedup();
    files
}

fn load_one(
    file: &PluginFile,
    bytes: &[u8],
    cache_dir: Option<&Path>,
) -> Result<Arc<Loaded>, Vec<Refusal>> {
    let mut all = LOADED.lock();
    if let Some(loaded) = all.get(&file.digest) {
        return Ok(Arc::clone(loaded));
    }
    let vtable = library::open(file, bytes, cache_dir).map_err(|refusal| vec![refusal])?;
    let manifest = check::manifest(file, &(vtable.manifest())())?;
    let number = REGISTRY.issue();
    host::introduce(number, &manifest.name);
    let loaded = Arc::new(Loaded {
        vtable,
        manifest: Arc::new(manifest),
        file: file.clone(),
        number,
        users: Mutex::new(0),
    });
    all.insert(file.digest.clone(), Arc::clone(&loaded));
    Ok(loaded)
}

/// Checks a file to the end: as [`crate::inspect_file`], then loads it and reads its manifest.
///
/// # Errors
/// All faults at once, as far as they can be told.
pub fn verify_file(path: &Path) -> Result<(PluginFile, Arc<Manifest>), Vec<Refusal>> {
    let (file, bytes) = inspect::read_file(path).map_err(inspect::Faults::into_all)?;
    let loaded = load_one(&file, &bytes, None)?;
    Ok((file, Arc::clone(&loaded.manifest)))
}
