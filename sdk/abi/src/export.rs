//! The root a plugin exports, and how a host reads the root of a file it has opened.

use crate::vtable::{Plugin, PluginRef};
use abi_stable::StableAbi;
use abi_stable::abi_stability::abi_checking::{
    AbiInstability, AbiInstabilityErrors, check_layout_compatibility,
};
use abi_stable::library::{AbiHeaderRef, CheckTypeLayout, LibHeader, RootModule, RootModuleError};
use abi_stable::marker_type::ErasedPrefix;
use abi_stable::prefix_type::{PrefixRef, PrefixRefTrait, PrefixTypeTrait};
use abi_stable::sabi_types::VersionStrings;
use abi_stable::type_layout::TLFieldOrFunction;
use std::panic::{AssertUnwindSafe, catch_unwind};

pub use abi_stable::library::RootModuleResult;

impl RootModule for PluginRef {
    const BASE_NAME: &'static str = "consign_plugin";
    const NAME: &'static str = "consign plugin";
    const VERSION_STRINGS: VersionStrings = abi_stable::package_version_strings!();

    abi_stable::declare_root_module_statics! {PluginRef}
}

/// The exported static: layout of the vtable, and how to get it.
#[must_use]
pub const fn header(constructor: extern "C" fn() -> RootModuleResult) -> LibHeader {
    // SAFETY: `constructor` is only ever made by `export_plugin!`, which calls `root` below, so
    // what it returns is a `PluginRef` whose layout is the one stated here.
    unsafe { LibHeader::from_constructor::<PluginRef>(constructor, CheckTypeLayout::Yes) }
}

/// The body of a constructor: makes the vtable; a panic in `make` becomes an error.
pub fn root(make: impl FnOnce() -> Result<Plugin, String>) -> RootModuleResult {
    let made = catch_unwind(AssertUnwindSafe(make))
        .unwrap_or_else(|_| Err("the plugin panicked while it described itself".to_owned()));
    match made {
        Ok(plugin) => {
            let root: PluginRef = plugin.leak_into_prefix();
            // SAFETY: the host casts it back to `PluginRef`, after the layouts were compared.
            let erased: PrefixRef<ErasedPrefix> =
                unsafe { root.to_prefix_ref().cast::<ErasedPrefix>() };
            RootModuleResult::ROk(erased)
        }
        Err(message) => RootModuleResult::RErr(RootModuleError::Returned(
            abi_stable::std_types::RBoxError::from_fmt(&message),
        )),
    }
}

/// Why a root can't be used.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RootError {
    /// The header is not one of abi_stable's, or of another version of it.
    Header(String),
    /// The types do not fit, neither as an older nor as a newer plugin. The text says where.
    Layout(String),
    /// The plugin failed while it described itself.
    Constructor(String),
}

/// Checks the layouts both ways and calls the plugin's constructor.
///
/// A plugin may have more methods than the host (it is newer) or fewer (it is older); every type
/// they both know must be the same.
///
/// # Errors
/// See [`RootError`].
///
/// # Safety
/// `header` must be the exported static of a plugin that stays loaded for ever.
pub unsafe fn open(header: AbiHeaderRef) -> Result<PluginRef, RootError> {
    // abi_stable's own report of a foreign header prints its bytes: of no use to anybody.
    let header = header.upgrade().map_err(|_| {
        RootError::Header("it is none of abi_stable 0.11's library headers".to_owned())
    })?;
    let Some(theirs) = header.layout() else {
        return Err(RootError::Layout(
            "the plugin states no layout of its vtable".to_owned(),
        ));
    };
    let ours = <PluginRef as StableAbi>::LAYOUT;
    if let Err(newer) = check_layout_compatibility(ours, theirs)
        && check_layout_compatibility(theirs, ours).is_err()
    {
        return Err(RootError::Layout(difference(&newer)));
    }
    // SAFETY: one of the two checks held, so every field both sides know has the same type at the
    // same place; fields the plugin lacks are guarded by the prefix type's accessors.
    unsafe { header.unchecked_layout::<PluginRef>() }
        .map_err(|e| RootError::Constructor(one_line(&e.to_string())))
}

/// The header's type, for reading an exported symbol.
pub type Header = AbiHeaderRef;

/// Where two layouts differ, in a clause; abi_stable's own report runs to pages.
fn difference(errors: &AbiInstabilityErrors) -> String {
    let Some(deepest) = errors.errors.iter().max_by_key(|e| e.stack_trace.len()) else {
        return "no detail".to_owned();
    };
    let mut place: Vec<&str> = deepest
        .stack_trace
        .iter()
        .map(|step| match &step.expected {
            TLFieldOrFunction::Field(field) => field.name(),
            TLFieldOrFunction::Function(function) => function.name.as_str(),
        })
        // Unnamed fields (of wrappers) say nothing.
        .filter(|step| !step.starts_with(|c: char| c.is_ascii_digit()))
        .collect();
    place.dedup();
    let what = match deepest.errs.first() {
        Some(AbiInstability::FieldCountMismatch(n)) => {
            format!("{} fields there and {} here", n.found, n.expected)
        }
        Some(AbiInstability::Size(n)) => {
            format!("{} bytes there and {} here", n.found, n.expected)
        }
        Some(AbiInstability::Name(n)) => format!("{} there and {} here", n.found, n.expected),
        Some(AbiInstability::PackageVersion(n)) => {
            format!("ABI crate {} there and {} here", n.found, n.expected)
        }
        Some(AbiInstability::UnexpectedField(n)) => {
            format!(
                "field {} there and {} here",
                n.found.name(),
                n.expected.name()
            )
        }
        _ => "another shape".to_owned(),
    };
    format!("at {}: {what}", place.join("."))
}

/// The first words of a report, on one line.
fn one_line(text: &str) -> String {
    const ENOUGH: usize = 300;
    let words: Vec<&str> = text.split_whitespace().collect();
    words.join(" ").chars().take(ENOUGH).collect()
}
