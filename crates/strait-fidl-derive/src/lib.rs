//! The derive macro of the crate `strait-fidl`, which exports it and describes its attributes.

mod attributes;
mod generate;
mod kinds;
#[cfg(test)]
mod tests;

use proc_macro::TokenStream;
use syn::{DeriveInput, parse_macro_input};

#[doc = include_str!("../derive.md")]
#[proc_macro_derive(Fidl, attributes(fidl))]
pub fn derive(input: TokenStream) -> TokenStream {
    let input = parse_macro_input!(input as DeriveInput);
    kinds::expand(&input).unwrap_or_else(syn::Error::into_compile_error).into()
}
