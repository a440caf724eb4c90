// Package report makes one page of runs that people can read without Perdure and hand on: what came of them
// in plain sentences, pictures, tables, settings, and how to run them again. It is one HTML file that needs
// nothing else, or Markdown with pictures beside it.
//
// Runs that differ in nothing but their seed are trials of one group; groups are named by what differs. Of
// runs of several workloads each has a section of its own: their results cannot be compared. What cannot be
// read, and what has no result, is named on the page and counts nowhere. A sentence claims no more than the
// spread of the trials allows. A page is a function of the runs and of Options. Nothing here is shared.
package report
