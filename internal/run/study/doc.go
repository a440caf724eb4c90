// Package study has what the programs in studies/ share: runs of a program in
// folders that are not run again, the medians of trials, tables, and how numbers are
// written for people.
//
// Nothing here is called concurrently.
package study
