package cli

import (
	"cmp"
	"fmt"
	"runtime"
	"runtime/debug"

	"github.com/spf13/cobra"
)

// A Build says what was built, from what and when.
type Build struct {
	Version string // such as "v1.2.3"
	Commit  string
	Date    string // of the commit, RFC 3339
}

// ReadBuild fills what the linker was not told from what the Go tool recorded.
func ReadBuild(b Build) Build {
	info, ok := debug.ReadBuildInfo()
	if ok && b.Version == "" && info.Main.Version != "(devel)" {
		b.Version = info.Main.Version
	}
	if ok {
		for _, s := range info.Settings {
			switch {
			case s.Key == "vcs.revision" && b.Commit == "":
				b.Commit = s.Value
			case s.Key == "vcs.time" && b.Date == "":
				b.Date = s.Value
			}
		}
	}
	if b.Version == "" {
		b.Version = "devel"
	}
	return b
}

// versionInfo is the answer of the version command.
type versionInfo struct {
	meta
	Version  string `json:"version"`
	Commit   string `json:"commit"`
	Date     string `json:"date"`
	Go       string `json:"go"`
	Platform string `json:"platform"`
}

func (t *tka) version() *cobra.Command {
	return &cobra.Command{
		Use:     "version",
		Short:   "Show which tka this is",
		Long:    `Show the version, commit and date of this program, and what it was built with and for.`,
		Example: "  tka version\n  tka version -o json",
		Args:    arguments(0, 0, ""),
		RunE: func(*cobra.Command, []string) error {
			v := versionInfo{kind("Version"), t.Build.Version, t.Build.Commit, t.Build.Date, runtime.Version(), runtime.GOOS + "/" + runtime.GOARCH}
			return t.show(answer{object: v, names: []string{v.Version}, table: func(wide bool) {
				fmt.Fprintf(t.Out, "tka %s\n", safe(v.Version))
				if wide {
					fmt.Fprintf(t.Out, "commit %s\ndate %s\n%s %s\n", safe(cmp.Or(v.Commit, "unknown")), safe(cmp.Or(v.Date, "unknown")), v.Go, v.Platform)
				}
			}})
		},
	}
}
