package run

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/url"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"github.com/tailplane/tailplane/internal/multicluster"
	multiclusterconfig "github.com/tailplane/tailplane/internal/multicluster/config"
)

// refusedError returns an error with exit code 3 for a refused file or request. The caller has already printed
// the reasons.
func refusedError(format string, args ...any) error {
	return exitCode{exitRefused, fmt.Errorf(format, args...)}
}

func validateCommand() *cobra.Command {
	var previous, output string
	var checks clusterCheckFlags
	c := &cobra.Command{
		Use: "validate FILE", Short: "Validate a configuration",
		Long: "Reads a configuration as the adapter would, and prints every error and warning with its line and column. With --previous, it also\n" +
			"prints changes that a running adapter would refuse because the epoch was not raised. It exits with 3 if the configuration is not valid.\n\n" +
			"With --check-clusters, it checks, with the credential that an adapter of this pod would use, whether each cluster is ready and has the\n" +
			"resources that rules send to it. It exits with 5 if a check fails. Outside of a pod, it skips the pod's own cluster.",
		Example: "  mca validate config.yaml\n  mca validate --previous old.yaml new.yaml\n  mca validate --check-clusters --credentials-dir secrets config.yaml",
		Args:    exactArgs(1, "the configuration; - is standard input"),
		RunE: func(c *cobra.Command, args []string) error {
			next, err := readFile(args[0], c.InOrStdin())
			if err != nil {
				return err
			}
			var prev []byte
			if previous != "" {
				if prev, err = readFile(previous, c.InOrStdin()); err != nil {
					return err
				}
			}
			report, err := multicluster.ValidateConfig(next, prev)
			if err != nil {
				return fmt.Errorf("%s: %w", cmp.Or(previous, args[0]), err)
			}
			r := validateResult{ValidationReport: report}
			if checks.enabled && report.Valid {
				if r.Clusters, err = checks.checkClusters(c.Context(), next); err != nil {
					return err
				}
			}
			if err := printReport(c, args[0], output, r); err != nil {
				return err
			}
			if !report.Valid {
				return refusedError("%s is not valid", args[0])
			}
			return r.clusterError()
		},
	}
	c.Flags().StringVar(&previous, "previous", "", "the configuration that this one replaces")
	c.Flags().StringVarP(&output, "output", "o", "", "json; without it, lines of text")
	checks.register(c.Flags())
	return c
}

func printReport(c *cobra.Command, name, output string, r validateResult) error {
	out := c.OutOrStdout()
	if output != "" {
		return printJSON(out, output, r)
	}
	for _, f := range r.Errors {
		fmt.Fprintf(out, "%s:%v\n", name, f)
	}
	for _, f := range r.Warnings {
		fmt.Fprintf(out, "%s:%v (a warning)\n", name, f)
	}
	for _, m := range r.Moves {
		fmt.Fprintf(out, "%s: %s\n", name, m)
	}
	r.print(out, name)
	return nil
}

func routeCommand() *cobra.Command {
	var config, body, contentType, agent, scope, output string
	c := &cobra.Command{
		Use: "route METHOD PATH", Short: "Show which cluster would serve a request, and why",
		Long: "Routes a request as the adapter would with a configuration, and prints the reason. Only the running adapter knows the cluster of an\n" +
			"object of several clusters, and which clusters are up. It exits with 3 if the request is refused.",
		Example: "  mca route --config config.yaml GET /api/v1/namespaces/shop/pods\n  mca route --config config.yaml --body job.yaml POST /apis/batch/v1/namespaces/batch/jobs",
		Args:    exactArgs(2, "a method and a path, such as GET /api/v1/pods"),
		RunE: func(c *cobra.Command, args []string) error {
			b, err := readFile(config, c.InOrStdin())
			if err != nil {
				return err
			}
			doc, _, err := multiclusterconfig.Parse(b)
			if err != nil {
				return refusedError("%s: %w", config, err)
			}
			u, err := url.ParseRequestURI(args[1])
			if err != nil {
				return usageError(err)
			}
			var object []byte
			if body != "" {
				if object, err = readFile(body, c.InOrStdin()); err != nil {
					return err
				}
			}
			scopes, ok := map[string]multiclusterconfig.Scope{"": multiclusterconfig.ScopeUnknown, "namespaced": multiclusterconfig.ScopeNamespaced, "cluster": multiclusterconfig.ScopeCluster}[scope]
			if !ok {
				return usageError(fmt.Errorf("--scope %q: must be namespaced or cluster", scope))
			}
			e := multicluster.NewTable(doc, func(_, _ string) multiclusterconfig.Scope { return scopes }).
				Explain(strings.ToUpper(args[0]), u, agent, contentType, object)
			if err := printExplanation(c.OutOrStdout(), output, e); err != nil {
				return err
			}
			if e.Status != 0 {
				return refusedError("refused with status %d", e.Status)
			}
			return nil
		},
	}
	p := c.Flags()
	p.StringVar(&config, "config", "/etc/mca/config/config.yaml", "the configuration; - is standard input")
	p.StringVar(&body, "body", "", "a file with the request body")
	p.StringVar(&contentType, "content-type", "application/yaml", "the Content-Type of the body")
	p.StringVar(&agent, "user-agent", "", "the User-Agent of the client")
	p.StringVar(&scope, "scope", "", "namespaced or cluster: the scope of a resource that is not built into Kubernetes")
	p.StringVarP(&output, "output", "o", "", "json; without it, lines of text")
	return c
}

func printExplanation(out io.Writer, output string, e multicluster.Explanation) error {
	if output != "" {
		return printJSON(out, output, e)
	}
	fmt.Fprintf(out, "%v: %s\n", e.Kind, e.Why)
	if e.Rule != "" {
		fmt.Fprintf(out, "rule: %s\n", e.Rule)
	}
	for _, m := range e.Clusters {
		fmt.Fprintf(out, "cluster: %s", m.Name)
		if len(m.Namespaces) > 0 {
			fmt.Fprintf(out, " (namespaces %s)", strings.Join(m.Namespaces, ", "))
		} else if m.Others {
			fmt.Fprint(out, " (all other namespaces)")
		}
		fmt.Fprintln(out)
	}
	if e.Place != "" {
		fmt.Fprintf(out, "made in: %s (%s)\n", e.Place, e.PlaceWhy)
	}
	for _, w := range e.Warnings {
		fmt.Fprintf(out, "warning: %s\n", w)
	}
	if e.Message != "" {
		fmt.Fprintf(out, "answer: %d %s\n", e.Status, e.Message)
	}
	return nil
}

// printJSON prints v in the format output, which must be json.
func printJSON(out io.Writer, output string, v any) error {
	if output != "json" {
		return usageError(fmt.Errorf("--output %q: must be json", output))
	}
	enc := json.NewEncoder(out)
	enc.SetIndent("", "  ")
	enc.SetEscapeHTML(false)
	return enc.Encode(v)
}

// exactArgs returns a validator that requires n arguments.
func exactArgs(n int, what string) cobra.PositionalArgs {
	return func(_ *cobra.Command, args []string) error {
		if len(args) != n {
			return usageError(errors.New("it takes " + what))
		}
		return nil
	}
}

// readFile reads a whole file; "-" is standard input.
func readFile(name string, stdin io.Reader) ([]byte, error) {
	if name == "-" {
		return io.ReadAll(stdin)
	}
	return os.ReadFile(name)
}
