// Package plane is what operators see and ask for: the installation as it is known
// now, over one tailnet-only API. It keeps law 7: what is not known is said to be
// not known, and is never a sample, a zero or a shorter list.
//
//	sources --Put, Replace, Report--> Board --List, Get--> operations (one envelope)
//	                                    |
//	                                    +--Since, Changed--> event stream
//
// It is a view and a desk: who reads the sources is joined to it by main, and what
// it is asked to do is decided in the rooms whose work it is.
package plane
