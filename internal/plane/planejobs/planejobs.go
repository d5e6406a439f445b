// Package planejobs is what operators see of single CI runners: which there are, what
// they run, what happened to them, what they write, and why they do not work. It keeps
// law 10: what a job, a repository or a log says is data, and who may see an
// organisation's runners is decided for each of them.
//
// It is a part of the plane's desk. It changes nothing.
package planejobs
