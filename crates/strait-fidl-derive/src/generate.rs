//! The implementations of the traits.

use proc_macro2::TokenStream;
use quote::quote;
use syn::{DeriveInput, GenericParam, Generics, Lifetime, LifetimeParam, parse_quote};

/// The bodies of the implementations of a type.
pub(crate) struct Parts {
    /// Constants of the type.
    pub(crate) constants: TokenStream,
    /// The checks of the limits of fields, which the compiler makes.
    pub(crate) checks: Vec<TokenStream>,
    /// The constants of `Layout`.
    pub(crate) layout: TokenStream,
    /// The constants of `Optional`, if the type can be absent.
    pub(crate) optional: Option<TokenStream>,
    /// The body of `encode`.
    pub(crate) encode: TokenStream,
    /// The body of `decode`.
    pub(crate) decode: TokenStream,
    /// Whether the type is only encoded.
    pub(crate) encode_only: bool,
}

/// Adds a bound to each type parameter.
fn bounded(generics: &Generics, bound: &TokenStream) -> Generics {
    let mut generics = generics.clone();
    for parameter in generics.type_params_mut() {
        parameter.bounds.push(parse_quote!(#bound));
    }
    generics
}

/// Adds the lifetime of the message, which all lifetimes of the type are shorter than.
fn with_message(generics: &Generics, message: &Lifetime) -> Generics {
    let mut generics = bounded(generics, &quote!(::strait_fidl::Decode<#message>));
    let shorter: Vec<Lifetime> = generics.lifetimes().map(|parameter| parameter.lifetime.clone()).collect();
    let mut parameter = LifetimeParam::new(message.clone());
    parameter.bounds.extend(shorter);
    generics.params.insert(0, GenericParam::Lifetime(parameter));
    generics
}

/// Returns a constant with the checks of limits, and a use of the constant for the body of a function. Both are `None`
/// without checks.
fn checked(checks: &[TokenStream]) -> (Option<TokenStream>, Option<TokenStream>) {
    if checks.is_empty() {
        return (None, None);
    }
    (Some(quote!(const __LIMITS: () = { #(#checks)* };)), Some(quote!(const { Self::__LIMITS };)))
}

/// Returns an item for which the compiler makes the checks of limits even if the type is never encoded or decoded;
/// `None` for a type with parameters, whose checks depend on them.
fn check_at_once(input: &DeriveInput, has_checks: bool) -> Option<TokenStream> {
    let generics = &input.generics;
    if !has_checks || generics.type_params().next().is_some() || generics.const_params().next().is_some() {
        return None;
    }
    let name = &input.ident;
    let lifetimes = generics.lifetimes().map(|_| quote!('static));
    Some(quote!(const _: () = <#name<#(#lifetimes),*>>::__LIMITS;))
}

/// Returns the implementations.
pub(crate) fn implementations(input: &DeriveInput, parts: Parts) -> TokenStream {
    let name = &input.ident;
    let (_, types, _) = input.generics.split_for_impl();
    let Parts { constants, checks, layout, optional, encode, decode, encode_only } = parts;
    let (limits, checked) = checked(&checks);

    let generics = bounded(&input.generics, &quote!(::strait_fidl::Layout));
    let (parameters, _, bounds) = generics.split_for_impl();
    let optional = optional.map(|optional| {
        quote! {
            #[automatically_derived]
            impl #parameters ::strait_fidl::Optional for #name #types #bounds {
                #optional
            }
        }
    });
    let layout = quote! {
        impl #parameters #name #types #bounds {
            #constants
            #limits
        }

        // SAFETY: the macro sets `COPYABLE` and `ANY_BITS` as the fields, their places, and the size of the type say.
        #[automatically_derived]
        unsafe impl #parameters ::strait_fidl::Layout for #name #types #bounds {
            #layout
        }

        #optional
    };

    let generics = bounded(&input.generics, &quote!(::strait_fidl::Encode));
    let (parameters, _, bounds) = generics.split_for_impl();
    let encode = quote! {
        #[automatically_derived]
        impl #parameters ::strait_fidl::Encode for #name #types #bounds {
            #[inline]
            fn encode<'__value>(
                &'__value self,
                __out: &mut ::strait_fidl::Output<'__value>,
                __at: usize,
                __context: ::strait_fidl::Context,
            ) -> ::core::result::Result<(), ::strait_fidl::Error> {
                #checked
                #encode
            }
        }
    };

    let message: Lifetime = parse_quote!('__message);
    let generics = with_message(&input.generics, &message);
    let (parameters, _, bounds) = generics.split_for_impl();
    let decode = (!encode_only).then(|| {
        quote! {
            #[automatically_derived]
            impl #parameters ::strait_fidl::Decode<#message> for #name #types #bounds {
                #[inline]
                fn decode(
                    __input: &mut ::strait_fidl::Decoder<#message>,
                    __at: usize,
                    __context: ::strait_fidl::Context,
                ) -> ::core::result::Result<Self, ::strait_fidl::Error> {
                    #checked
                    #decode
                }
            }
        }
    });

    let at_once = check_at_once(input, limits.is_some());
    quote! {
        #[allow(clippy::undocumented_unsafe_blocks, unused_variables, unused_mut, non_upper_case_globals)]
        const _: () = {
            #layout
            #encode
            #decode
            #at_once
        };
    }
}
