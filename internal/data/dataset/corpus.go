package dataset

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/perdure/perdure"
)

// Corpus is a set of documents, divided into training documents and documents for evaluation.
type Corpus struct {
	Name        string
	Words       []string // spellings by number; nil if unknown
	Size        int      // size of the vocabulary: words are numbered 0 … Size-1
	Train, Test Documents

	synthetic bool // determined by its name
}

// Documents is a concatenation of documents. A word that occurs three times in a document is listed three times.
type Documents struct {
	Starts []int   // start of each document in Tokens, and the end of the last one
	Tokens []int32 // numbers of words
}

// Len returns the number of documents.
func (d *Documents) Len() int { return max(0, len(d.Starts)-1) }

// Document returns the words of the i-th document.
func (d *Documents) Document(i int) []int32 { return d.Tokens[d.Starts[i]:d.Starts[i+1]] }

// endDocument ends the current document.
func (d *Documents) endDocument() {
	if len(d.Starts) == 0 {
		d.Starts = append(d.Starts, 0)
	}
	d.Starts = append(d.Starts, len(d.Tokens))
}

// Bytes returns the memory size of the corpus, without the spellings of words.
func (c *Corpus) Bytes() int64 {
	return 4*int64(len(c.Train.Tokens)+len(c.Test.Tokens)) + 8*int64(len(c.Train.Starts)+len(c.Test.Starts))
}

// Word returns the spelling of the word with number i or, if it is unknown, "word" followed by i.
func (c *Corpus) Word(i int) string {
	if i < len(c.Words) {
		return c.Words[i]
	}
	return "word" + strconv.Itoa(i)
}

// Digest identifies a corpus by its content: "sha256:" and a hash over both parts. For each part it covers the number
// of documents, the length of each document and the words' numbers, all in 4 bytes, little-endian. The digest of a
// synthetic corpus is its name, which determines the corpus.
func (c *Corpus) Digest() string {
	if c.synthetic {
		return c.Name
	}
	s := newHasher()
	for _, part := range []*Documents{&c.Train, &c.Test} {
		s.word(uint32(part.Len()))
		for i := range part.Len() {
			doc := part.Document(i)
			s.word(uint32(len(doc)))
			for _, word := range doc {
				s.word(uint32(word))
			}
		}
	}
	return s.text()
}

// maxCorpusTokens is the max number of training tokens: float32 counts exactly only to 2²⁴, but a topic has only a
// share of the tokens.
const maxCorpusTokens = 1 << 28

// OpenCorpus opens or generates the corpus for a path:
//
//   - "" or "synthetic:N": N synthetic documents, see SyntheticCorpus;
//   - a file: documents in the LDA-C format, plain or gzip-compressed, and vocab.txt in its directory if it exists;
//   - a directory with train.ldac or train.ldac.gz: in the same format, with held-out documents in test.ldac[.gz];
//   - another directory: each file in or below it whose name ends with .txt is a document, and each whose name ends
//     with .json is a list of documents, {"title": …, "body": …}; those without a body are ignored.
//
// If there is no file of held-out documents, about every tenth document is held out, by a hash of its position.
func OpenCorpus(path string) (*Corpus, error) {
	if path == "" {
		path = DefaultCorpus
	}
	if size, ok := strings.CutPrefix(path, SyntheticPrefix); ok {
		n, err := strconv.Atoi(size)
		if err != nil || n < minSyntheticDocuments || n > maxSyntheticDocuments {
			return nil, perdure.Usagef("invalid data %s: choose %d to %d documents, as in %s", path,
				minSyntheticDocuments, maxSyntheticDocuments, DefaultCorpus)
		}
		return SyntheticCorpus(n), nil
	}
	c, err := loadCorpus(path)
	if err != nil {
		return nil, err
	}
	switch {
	case len(c.Train.Tokens) == 0:
		return nil, corrupt(path, "has no words to train on")
	case len(c.Test.Tokens) == 0:
		return nil, corrupt(path, "has no words in the held-out documents; use more than %d documents",
			c.Train.Len()+c.Test.Len())
	case len(c.Train.Tokens) > maxCorpusTokens:
		return nil, corrupt(path, "has %d words to train on; at most %d are accepted", len(c.Train.Tokens),
			maxCorpusTokens)
	}
	return c, nil
}

func loadCorpus(path string) (*Corpus, error) {
	info, err := os.Stat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil, &FileError{Path: path, Problem: "no such file or directory", Kind: ErrMissing}
	case err != nil:
		return nil, &FileError{Path: path, Problem: "cannot be accessed", Kind: err}
	case !info.IsDir():
		return loadCorpusFiles(path, path, "")
	}
	if train, there := findFile(filepath.Join(path, "train.ldac")); there {
		test, there := findFile(filepath.Join(path, "test.ldac"))
		if !there {
			test = ""
		}
		return loadCorpusFiles(path, train, test)
	}
	return loadTexts(path)
}

// wordsUsed returns the highest number of a word plus one.
func (c *Corpus) wordsUsed() int {
	most := int32(-1)
	for _, part := range []*Documents{&c.Train, &c.Test} {
		if len(part.Tokens) > 0 {
			most = max(most, slices.Max(part.Tokens))
		}
	}
	return int(most) + 1
}
