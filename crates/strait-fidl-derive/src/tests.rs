//! The errors of the macro.

use syn::parse_quote;

use crate::kinds::expand;

/// Returns the error of a type.
fn error(input: syn::DeriveInput) -> String {
    expand(&input).expect_err("this must not compile").to_string()
}

#[test]
fn a_table_has_ordinals_and_options() {
    let begin = |text: String, begin: &str| assert!(text.starts_with(begin), "{text}");
    begin(
        error(parse_quote!(
            #[fidl(table)]
            struct T {
                x: Option<u8>,
            }
        )),
        "an ordinal is missing",
    );
    begin(
        error(parse_quote!(
            #[fidl(table)]
            struct T {
                #[fidl(1)]
                x: u8,
            }
        )),
        "a field of a table is an Option",
    );
    begin(
        error(parse_quote!(
            #[fidl(table)]
            struct T {
                #[fidl(0)]
                x: Option<u8>,
            }
        )),
        "an ordinal is a number from 1",
    );
    begin(
        error(parse_quote!(
            #[fidl(table)]
            struct T {
                #[fidl(65)]
                x: Option<u8>,
            }
        )),
        "an ordinal is a number from 1 to 64",
    );
    let twice = parse_quote!(
        #[fidl(table)]
        struct T {
            #[fidl(1)]
            x: Option<u8>,
            #[fidl(1)]
            y: Option<u8>,
        }
    );
    begin(error(twice), "this ordinal is there twice");
    begin(
        error(parse_quote!(
            struct T {
                #[fidl(1)]
                x: u8,
            }
        )),
        "only fields of tables and unions have an ordinal",
    );
    begin(
        error(parse_quote!(
            #[fidl(table, bits)]
            struct T {
                x: u8,
            }
        )),
        "a type is of one kind",
    );
    begin(
        error(parse_quote!(
            #[fidl(table, strict)]
            struct T {}
        )),
        "only unions, enums and bits",
    );
    begin(
        error(parse_quote!(
            #[fidl(table)]
            enum T {
                X,
            }
        )),
        "tables and bits are structs",
    );
}

#[test]
fn a_union_says_what_it_does_with_unknown_fields() {
    let begin = |text: String, begin: &str| assert!(text.starts_with(begin), "{text}");
    begin(
        error(parse_quote!(
            #[fidl(union)]
            enum U {
                #[fidl(1)]
                A(u8),
            }
        )),
        "union is strict or flexible: #[fidl(union, strict)]",
    );
    begin(
        error(parse_quote!(
            #[fidl(union, flexible)]
            enum U {
                #[fidl(1)]
                A(u8),
            }
        )),
        "a flexible type has a variant for unknown",
    );
    let strict = parse_quote!(
        #[fidl(union, strict)]
        enum U {
            #[fidl(1)]
            A(u8),
            #[fidl(unknown)]
            B(u64),
        }
    );
    begin(error(strict), "a strict type has no variant for unknown");
    let bare = parse_quote!(
        #[fidl(union, flexible)]
        enum U {
            #[fidl(1)]
            A(u8),
            #[fidl(unknown)]
            B,
        }
    );
    begin(error(bare), "unknown values are kept as a number: B(u64)");
    begin(
        error(parse_quote!(
            #[fidl(union, strict)]
            enum U {
                #[fidl(1)]
                A(u8, u8),
            }
        )),
        "a variant of a union has one value",
    );
    begin(
        error(parse_quote!(
            #[fidl(union, strict)]
            enum U {
                A(u8),
            }
        )),
        "an ordinal is missing",
    );
    begin(
        error(parse_quote!(
            #[fidl(union, strict)]
            struct U {
                a: u8,
            }
        )),
        "a union is an enum",
    );
    begin(error(parse_quote!(union U { a: u8 })), "a union of FIDL is an enum");
}

#[test]
fn enums_and_bits_name_their_type_and_what_they_know() {
    let begin = |text: String, begin: &str| assert!(text.starts_with(begin), "{text}");
    begin(
        error(parse_quote!(
            #[fidl(strict)]
            enum E {
                A = 1,
            }
        )),
        "an enum has the type of its numbers",
    );
    begin(
        error(parse_quote!(
            #[repr(u8)]
            enum E {
                A = 1,
            }
        )),
        "enum is strict or flexible: #[fidl(strict)] or #[fidl(flexible)]",
    );
    begin(
        error(parse_quote!(
            #[fidl(flexible)]
            #[repr(u8)]
            enum E {
                A = 1,
            }
        )),
        "a flexible type has a variant for unknown",
    );
    begin(
        error(parse_quote!(
            #[fidl(strict)]
            #[repr(u8)]
            enum E {
                #[fidl(1)]
                A,
            }
        )),
        "the number of a variant stands behind it",
    );
    begin(
        error(parse_quote!(
            #[fidl(strict)]
            #[repr(u8)]
            enum E {
                A(u8),
            }
        )),
        "a variant of an enum has no value",
    );
    begin(
        error(parse_quote!(
            #[fidl(bits, strict)]
            struct B(u8);
        )),
        "strict bits name the bits that they know",
    );
    begin(
        error(parse_quote!(
            #[fidl(bits, flexible)]
            struct B(i8);
        )),
        "the type of bits is u8, u16, u32 or u64",
    );
    begin(
        error(parse_quote!(
            #[fidl(bits, flexible)]
            struct B(u8, u8);
        )),
        "bits are a struct of one number",
    );
    begin(
        error(parse_quote!(
            #[fidl(mask = 3)]
            struct B(u8);
        )),
        "only a type of bits has a mask",
    );
}

#[test]
fn an_unknown_word_is_refused_where_it_stands() {
    assert!(
        error(parse_quote!(
            #[fidl(tabel)]
            struct T {}
        ))
        .contains("here can be: table, union, bits")
    );
    assert!(
        error(parse_quote!(
            struct T {
                #[fidl(unknown)]
                x: u8,
            }
        ))
        .contains("here can be: an ordinal, max")
    );
    assert_eq!(
        error(parse_quote!(
            #[fidl(max = 1)]
            struct T {}
        )),
        "only a field or a variant has a limit"
    );
    assert_eq!(
        error(parse_quote!(
            #[fidl(1)]
            struct T {}
        )),
        "only a field or a variant has an ordinal"
    );
}

#[test]
fn an_attribute_says_nothing_twice() {
    let ordinals = error(parse_quote!(
        #[fidl(table)]
        struct T {
            #[fidl(1, 2)]
            x: Option<u8>,
        }
    ));
    assert_eq!(ordinals, "a field or a variant has one ordinal");
    let in_two_attributes = error(parse_quote!(
        #[fidl(union, strict)]
        enum U {
            #[fidl(1)]
            #[fidl(1)]
            A(u8),
        }
    ));
    assert_eq!(in_two_attributes, "a field or a variant has one ordinal");
    let strictness = error(parse_quote!(
        #[fidl(union, strict, flexible)]
        enum U {
            #[fidl(1)]
            A(u8),
        }
    ));
    assert_eq!(strictness, "give one of `strict` and `flexible`, once");
    let masks = error(parse_quote!(
        #[fidl(bits, strict, mask = 1, mask = 2)]
        struct B(u8);
    ));
    assert_eq!(masks, "a type of bits has one mask");
    let words = error(parse_quote!(
        #[fidl(table, table)]
        struct T {}
    ));
    assert_eq!(words, "this word is given twice: remove one");
}

#[test]
fn a_limit_stands_where_something_takes_it() {
    let flexible = parse_quote!(
        #[fidl(union, flexible)]
        enum U {
            #[fidl(1)]
            A(u8),
            #[fidl(unknown, max = 1)]
            B(u64),
        }
    );
    assert_eq!(error(flexible), "only a string or a vector has a limit");
    let numbers = parse_quote!(
        #[fidl(strict)]
        #[repr(u8)]
        enum E {
            #[fidl(max = 1)]
            A,
        }
    );
    assert_eq!(error(numbers), "only a string or a vector has a limit");
    let bits = parse_quote!(
        #[fidl(bits, flexible)]
        struct B(#[fidl(max = 1)] u8);
    );
    assert_eq!(error(bits), "only a string or a vector has a limit");
    let twice = parse_quote!(
        #[fidl(union, strict)]
        enum U {
            #[fidl(1, max = 1)]
            A(#[fidl(max = 2)] String),
        }
    );
    assert_eq!(error(twice), "the variant has limits already");
    let lists = parse_quote!(
        struct S {
            #[fidl(max = 1, max = 2)]
            a: String,
        }
    );
    assert!(error(lists).starts_with("a field or a variant has one list of limits"));
    let none = parse_quote!(
        struct S {
            #[fidl(max())]
            a: String,
        }
    );
    assert!(error(none).starts_with("a field or a variant has one list of limits"));
}
