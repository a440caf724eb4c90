// Package trials runs trials, which are runs of a program in folders, and summarizes several of them: medians and
// ranges, curves of what they measured over time, tables, and how numbers are written for people.
//
// Nothing here is called concurrently.
package trials
