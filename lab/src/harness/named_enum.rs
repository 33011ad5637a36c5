//! Enumerations whose members have names in options and reports.

/// Defines one: its members, their names, what writes, serializes and reads them.
macro_rules! named {
    (
        $(#[$attribute:meta])*
        $visibility:vis enum $type:ident {
            $($(#[doc = $about:literal])* $member:ident = $name:literal,)*
        }
    ) => {
        $(#[$attribute])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
        $visibility enum $type { $($(#[doc = $about])* $member,)* }

        impl $type {
            /// All, in the order of reports.
            $visibility const ALL: [Self; [$($name),*].len()] = [$(Self::$member),*];

            /// Its name in options and reports.
            $visibility fn name(self) -> &'static str {
                match self { $(Self::$member => $name,)* }
            }
        }

        impl std::fmt::Display for $type {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.pad(self.name())
            }
        }

        impl serde::Serialize for $type {
            fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.serialize_str(self.name())
            }
        }

        impl clap::ValueEnum for $type {
            fn value_variants<'a>() -> &'a [Self] {
                &Self::ALL
            }

            fn to_possible_value(&self) -> Option<clap::builder::PossibleValue> {
                let about = match self {
                    $(Self::$member => concat!($($about),*).trim().trim_end_matches('.'),)*
                };
                let value = clap::builder::PossibleValue::new(self.name());
                Some(if about.is_empty() { value } else { value.help(about) })
            }
        }
    };
}

pub(crate) use named;

#[cfg(test)]
mod tests {
    use clap::ValueEnum as _;

    named! {
        enum Way {
            There = "there",
            Back = "and-back",
        }
    }

    #[test]
    fn names_go_both_ways() {
        for way in Way::ALL {
            assert_eq!(Way::from_str(way.name(), false), Ok(way));
        }
        assert!(Way::from_str("Back", false).is_err());
        assert_eq!(serde_json::json!(Way::ALL).to_string(), r#"["there","and-back"]"#);
        assert_eq!(format!("{:>9}", Way::Back), " and-back");
    }
}
