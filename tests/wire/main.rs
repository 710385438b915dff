//! Decoders against captured bytes: what engines' own publishers sent, with its meaning beside it, and what
//! strangers might send.

#[cfg(test)]
mod captures;
#[cfg(test)]
mod dynamo;
#[cfg(test)]
mod malformed;
#[cfg(test)]
mod mutations;
#[cfg(test)]
mod replays;
#[cfg(test)]
mod shapes;
#[cfg(test)]
mod support;
#[cfg(test)]
mod trtllm;
