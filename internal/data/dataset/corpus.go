package dataset

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/perdure/perdure"
)

// Corpus is documents, parted into those that are trained on and those that a model is judged by.
type Corpus struct {
	Name        string
	Words       []string // by number; nil: nobody has said how the words are written
	Size        int      // of the vocabulary: words have the numbers 0 … Size-1
	Train, Test Documents

	synthetic bool // a function of its name
}

// Documents are documents one after the other. A word that a document has three times is there three times.
type Documents struct {
	Starts []int   // where the documents begin in Tokens, and where the last one ends
	Tokens []int32 // numbers of words
}

// Len returns the number of documents.
func (d *Documents) Len() int { return max(0, len(d.Starts)-1) }

// Document returns the words of the i-th document.
func (d *Documents) Document(i int) []int32 { return d.Tokens[d.Starts[i]:d.Starts[i+1]] }

// end says that a document has all its words.
func (d *Documents) end() {
	if len(d.Starts) == 0 {
		d.Starts = append(d.Starts, 0)
	}
	d.Starts = append(d.Starts, len(d.Tokens))
}

// Bytes returns what the corpus takes in memory, without the words as they are written.
func (c *Corpus) Bytes() int64 {
	return 4*int64(len(c.Train.Tokens)+len(c.Test.Tokens)) + 8*int64(len(c.Train.Starts)+len(c.Test.Starts))
}

// Word returns how a word is written; where nobody has said so, its number.
func (c *Corpus) Word(i int) string {
	if i < len(c.Words) {
		return c.Words[i]
	}
	return "word" + strconv.Itoa(i)
}

// Digest tells corpora apart by what is in them: "sha256:" and a hash over both parts, of each how many documents
// it has, the length of each, and the words' numbers, all in 4 bytes, little-endian. That of a synthetic corpus is its
// name, of which it is a function.
func (c *Corpus) Digest() string {
	if c.synthetic {
		return c.Name
	}
	s := newSummer()
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

// maxCorpusTokens bounds what is trained on: float32 counts to 2²⁴, and a topic has a share of the tokens only.
const maxCorpusTokens = 1 << 28

// OpenCorpus makes the corpus that a path names:
//
//   - "" or "synthetic:N": N documents that are made up, see Synthetic;
//   - a file: documents in the LDA-C format, plain or compressed by gzip, with vocab.txt beside it if it is there;
//   - a folder with train.ldac or train.ldac.gz: likewise, and test.ldac or test.ldac.gz has what is held out;
//   - another folder: each file in it and below it whose name ends with .txt is a document, and each whose name ends
//     with .json is a list of documents, {"title": …, "body": …}, of which those count that have a body.
//
// Where nothing says which documents are held out, every tenth or so is, by a hash of its place.
func OpenCorpus(path string) (*Corpus, error) {
	if path == "" {
		path = DefaultCorpus
	}
	if size, ok := strings.CutPrefix(path, SyntheticPrefix); ok {
		n, err := strconv.Atoi(size)
		if err != nil || n < minMadeUpDocuments || n > maxMadeUpDocuments {
			return nil, fmt.Errorf("%w: data %s: choose %d to %d documents, as in %s", perdure.ErrUsage, path,
				minMadeUpDocuments, maxMadeUpDocuments, DefaultCorpus)
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
		return nil, corrupt(path, "has no words in the documents that are held out; give more than %d "+
			"documents", c.Train.Len()+c.Test.Len())
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
		return nil, &FileError{Path: path, Problem: "no such file or folder", Kind: ErrMissing}
	case err != nil:
		return nil, &FileError{Path: path, Problem: "cannot be looked at", Kind: err}
	case !info.IsDir():
		return loadCorpusFiles(path, path, "")
	}
	if train, there := plainOrPacked(filepath.Join(path, "train.ldac")); there {
		test, there := plainOrPacked(filepath.Join(path, "test.ldac"))
		if !there {
			test = ""
		}
		return loadCorpusFiles(path, train, test)
	}
	return loadTexts(path)
}

// wordsUsed returns one more than the highest number of a word.
func (c *Corpus) wordsUsed() int {
	most := int32(-1)
	for _, part := range []*Documents{&c.Train, &c.Test} {
		if len(part.Tokens) > 0 {
			most = max(most, slices.Max(part.Tokens))
		}
	}
	return int(most) + 1
}
