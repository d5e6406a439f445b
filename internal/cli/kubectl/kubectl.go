// Package kubectl lists and ends the sign-ins of all people, for administrators. It keeps law 6: administrators use their own identity,
// kubectl and kubeconfig, and Tailplane gives them no additional right.
package kubectl

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"io"
	"os/exec"
	"slices"
	"strings"
	"time"

	"github.com/tailplane/tailplane/internal/cli/fault"
	"github.com/tailplane/tailplane/internal/cli/screen"
)

const (
	// Namespace is the default namespace of sign-ins.
	Namespace = "tailplane-signins"

	signinsResource = "tkasignins.tailplane.dev"
	mostSignins     = 256 << 20 // bytes of a list
)

// A Cluster selects the cluster that an administrator works on.
type Cluster struct {
	Context    string // in the kubeconfig; "": the current one
	Namespace  string // of the sign-ins; "": Namespace
	Kubeconfig string // a file; "": kubectl's default
	Limit      time.Duration
	Environ    []string // for kubectl; nil: the environment of tka
}

// A Session is a sign-in as stored in the cluster.
type Session struct {
	Name       string   `json:"name"`
	Login      string   `json:"login"`
	Device     string   `json:"device"`
	Role       string   `json:"role"`
	Namespaces []string `json:"namespaces"` // empty: the whole cluster
	Phase      string   `json:"phase"`
	Until      string   `json:"until"` // RFC 3339; "": not provisioned
	Since      string   `json:"since"`
	Revoked    bool     `json:"revoked,omitempty"`
	Error      string   `json:"error,omitempty"`
}

// Sessions returns all sign-ins, sorted by login and name.
func (c Cluster) Sessions(ctx context.Context) ([]Session, error) {
	text, err := c.run(ctx, "get", signinsResource, "--output", "json")
	if err != nil {
		return nil, err
	}
	var list struct {
		Items []struct {
			Metadata struct {
				Name              string
				CreationTimestamp string
			}
			Spec struct {
				User       struct{ Login string }
				Device     struct{ Name string }
				Role       string
				Namespaces []string
			}
			Status struct {
				Phase      string
				Role       string
				Namespaces []string
				ValidUntil string
			}
		}
	}
	if err := json.Unmarshal(text, &list); err != nil {
		return nil, fault.New(fault.Failed, "kubectl did not list sign-ins: %v", err).Because(err).Try("kubectl get %s -n %s -o json", signinsResource, screen.Word(cmp.Or(c.Namespace, Namespace)))
	}
	all := []Session{}
	for _, i := range list.Items {
		s := Session{Name: i.Metadata.Name, Login: i.Spec.User.Login, Device: i.Spec.Device.Name, Role: i.Status.Role, Namespaces: i.Status.Namespaces,
			Phase: cmp.Or(i.Status.Phase, "Pending"), Until: i.Status.ValidUntil, Since: i.Metadata.CreationTimestamp}
		if s.Role == "" { // not bound yet: show the requested role
			s.Role, s.Namespaces = i.Spec.Role, i.Spec.Namespaces
		}
		s.Namespaces = append([]string{}, s.Namespaces...)
		all = append(all, s)
	}
	slices.SortFunc(all, func(a, b Session) int { return cmp.Or(cmp.Compare(a.Login, b.Login), cmp.Compare(a.Name, b.Name)) })
	return all, nil
}

// Revoke ends the sign-in with that name. It is no error if the sign-in is already gone.
func (c Cluster) Revoke(ctx context.Context, name string) error {
	_, err := c.run(ctx, "delete", signinsResource, name, "--ignore-not-found", "--wait=true")
	return err
}

// run runs kubectl as the user of tka.
func (c Cluster) run(ctx context.Context, args ...string) ([]byte, error) {
	path, err := exec.LookPath("kubectl")
	if err != nil {
		return nil, fault.New(fault.Failed, "This needs kubectl, and there is none in $PATH").Because(err).
			Try("Install kubectl, with a kubeconfig of an administrator.")
	}
	args = append(args, "--namespace", cmp.Or(c.Namespace, Namespace))
	if c.Context != "" {
		args = append(args, "--context", c.Context)
	}
	if c.Kubeconfig != "" {
		args = append(args, "--kubeconfig", c.Kubeconfig)
	}
	cmd := exec.CommandContext(ctx, path, args...)
	cmd.Env = c.Environ
	cmd.WaitDelay = time.Second
	var stderr bytes.Buffer
	cmd.Stderr = &limitedWriter{w: &stderr, left: 64 << 10}
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		return nil, fault.New(fault.Failed, "kubectl cannot be run: %v", err).Because(err).Try("kubectl version")
	}
	text, rerr := io.ReadAll(io.LimitReader(out, mostSignins+1))
	if rerr == nil && len(text) > mostSignins {
		rerr = errors.New("there is no end of the list")
	}
	if rerr != nil {
		cmd.Process.Kill()
	}
	err = cmd.Wait()
	switch said := strings.TrimSpace(stderr.String()); {
	case ctx.Err() != nil && errors.Is(context.Cause(ctx), context.DeadlineExceeded):
		return nil, fault.New(fault.NotReady, "kubectl did not finish within %v", c.Limit).Try("Give it longer: --timeout 2m")
	case ctx.Err() != nil:
		return nil, fault.New(fault.Interrupted, "interrupted")
	case rerr != nil:
		return nil, fault.New(fault.Failed, "kubectl: %v", rerr).Because(rerr)
	case err != nil:
		line, _, _ := strings.Cut(said, "\n")
		return nil, fault.New(kubectlCode(said), "kubectl: %s", cmp.Or(line, err.Error())).Because(err).Try("Name a context with the rights of an administrator: --context NAME")
	}
	return text, nil
}

// kubectlCode derives an exit code from kubectl's messages, because kubectl always exits with 1.
func kubectlCode(said string) int {
	switch {
	case strings.Contains(said, "(Forbidden)"), strings.Contains(said, "Unauthorized"), strings.Contains(said, "must be logged in"):
		return fault.Refused
	case strings.Contains(said, "Unable to connect"), strings.Contains(said, "was refused"), strings.Contains(said, "i/o timeout"), strings.Contains(said, "no such host"):
		return fault.Unreachable
	}
	return fault.Failed
}

// A limitedWriter drops output beyond its limit.
type limitedWriter struct {
	w    io.Writer
	left int
}

func (l *limitedWriter) Write(b []byte) (int, error) {
	n := min(len(b), l.left)
	l.left -= n
	if _, err := l.w.Write(b[:n]); err != nil {
		return 0, err
	}
	return len(b), nil
}
