// Package plane implements the operator plane: one tailnet-only API that shows the current state of the installation and accepts changes to
// it. It keeps law 7: the plane reports unknown state as unknown, and never as a sample, a zero or a shorter list.
//
//	sources --Put, Replace, Report--> Board --List, Get--> operations (one envelope)
//	                                    |
//	                                    +--Since, Changed--> event stream
//
// The package only shows state and dispatches requests. Main connects the sources to it, and other packages decide and make the changes.
package plane
