package cli

import (
	"cmp"
	"context"
	"fmt"
	"runtime"
	"runtime/debug"
	"time"

	"github.com/spf13/cobra"

	"github.com/tailplane/tailplane/internal/cli/doctor"
)

// A Build is the version, commit and date of the program.
type Build struct {
	Version string // such as "v1.2.3"
	Commit  string
	Date    string // of the commit, RFC 3339
}

// ReadBuild fills empty fields from the build information of the Go tool.
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

// versionInfo is the output of the version command.
type versionInfo struct {
	meta
	Version  string `json:"version"`
	Commit   string `json:"commit"`
	Date     string `json:"date"`
	Go       string `json:"go"`
	Platform string `json:"platform"`
	Server   string `json:"server"` // version of the access server; "": unknown
	Skew     bool   `json:"skew"`   // more than one minor version apart
}

// versionFlag adds --version and the action of the root command. Cobra's own flag needs its version template. text/template prevents the
// linker from removing uncalled methods, which adds 3 MB.
func (t *tka) versionFlag(root *cobra.Command) {
	f := root.Flags()
	f.BoolVarP(&t.showVersion, "version", "v", false, "version for "+root.DisplayName())
	_ = f.SetAnnotation("version", cobra.FlagSetByCobraAnnotation, []string{"true"}) // cobra then completes nothing after it
	root.Args = func(cmd *cobra.Command, args []string) error {
		if t.showVersion {
			return nil
		}
		return t.rejectArguments(cmd, args)
	}
	root.RunE = func(cmd *cobra.Command, _ []string) error {
		if !t.showVersion {
			return cmd.Help()
		}
		_, err := fmt.Fprintf(cmd.OutOrStdout(), "tka %s\n", t.Build.Version)
		return err
	}
}

func (t *tka) version() *cobra.Command {
	var client bool
	var cluster string
	cmd := &cobra.Command{
		Use:   "version",
		Short: "Show the versions of tka and of the server",
		Long: `Show the version, commit, date, Go version and platform of this program, and the version of
the server if this machine knows one. If the server does not answer, that is not an error.`,
		Example: "  tka version\n  tka version --client -o json",
		RunE:    func(cmd *cobra.Command, _ []string) error { return t.doVersion(cmd.Context(), cluster, client) },
	}
	cmd.Flags().BoolVar(&client, "client", false, "show only this program")
	return t.clusterFlag(cmd, &cluster, "cluster of the server; this machine or its server must know it", t.clusterNames)
}

// versionTimeout bounds the request to the server, which is optional.
const versionTimeout = 2 * time.Second

func (t *tka) doVersion(ctx context.Context, cluster string, client bool) error {
	v := versionInfo{meta: newMeta("Version"), Version: t.Build.Version, Commit: t.Build.Commit, Date: t.Build.Date, Go: runtime.Version(), Platform: runtime.GOOS + "/" + runtime.GOARCH}
	if !client {
		ctx, cancel := context.WithTimeout(ctx, versionTimeout)
		defer cancel()
		var err error
		if v.Server, err = t.serverVersion(ctx, cluster); err != nil {
			t.hint("The server's version is unknown: %s", errorMessage(err))
		}
		v.Skew = doctor.SkewTooLarge(v.Version, v.Server)
	}
	return t.printResult(result{object: v, names: []string{v.Version}, table: func(wide bool) {
		t.printLine("tka %s", v.Version)
		if wide {
			t.printLine("commit %s", cmp.Or(v.Commit, "unknown"))
			t.printLine("date %s", cmp.Or(v.Date, "unknown"))
			t.printLine("%s %s", v.Go, v.Platform)
		}
		if v.Server != "" {
			t.printLine("server %s", v.Server)
		}
		if v.Skew {
			t.warn("they differ by more than one minor version")
		}
	}})
}

// serverVersion returns the version of a server that this machine knows or that a flag names; "" if there is none.
func (t *tka) serverVersion(ctx context.Context, cluster string) (string, error) {
	l, err := t.locate(cluster)
	if err != nil {
		return "", err
	}
	if l.Key.IsZero() && t.server == "" && cluster == "" {
		return "", nil
	}
	l.Timeout = versionTimeout
	err = t.verify(ctx, l, cluster)
	return l.Info.Version, err
}
