// Package study has what studies and reports share: runs of a program in folders, the
// medians of trials, tables, and how numbers are written for people.
//
// Nothing here is called concurrently.
package study
