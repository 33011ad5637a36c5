//! Enumerations whose members have names in options and reports.

/// Writes, reads and serializes an enumeration that has `ALL` and `name`. `$unknown` makes the error
/// of what was read and the names there are.
macro_rules! named {
    ($type:ty, $unknown:path) => {
        impl std::fmt::Display for $type {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.pad(self.name())
            }
        }

        impl std::str::FromStr for $type {
            type Err = $crate::Error;

            fn from_str(text: &str) -> Result<Self, Self::Err> {
                let names = || Self::ALL.map(Self::name).join(", ");
                let found = Self::ALL.into_iter().find(|one| one.name() == text);
                found.ok_or_else(|| $unknown(text.to_owned(), names()))
            }
        }

        impl serde::Serialize for $type {
            fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.serialize_str(self.name())
            }
        }
    };
}

pub(crate) use named;
