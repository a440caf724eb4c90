// Package report writes a report of runs that can be read and shared without Perdure: the results in plain sentences,
// plots, tables, settings, and the commands to repeat the runs. It is one self-contained HTML file, or a Markdown file
// with pictures next to it.
//
// Runs that differ only in their seed are trials of one group; a group is named by the settings that differ. Each
// workload has its own section, because results of different workloads cannot be compared. Runs that cannot be read or
// that have no result are listed, but do not count. A sentence claims no more than the spread of the trials allows. A
// page depends only on the runs and on Options. The package has no shared state.
package report
