package client

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

	"github.com/tailplane/tailplane/internal/cli/output"
	"github.com/tailplane/tailplane/internal/signin"
)

const (
	// SigninNamespace is the default namespace of sign-ins.
	SigninNamespace = "tailplane-signins"

	signinsResource = "tkasignins.tailplane.dev"
	maxSigninBytes  = 256 << 20 // bytes of a list
)

// A Kubectl lists and ends the sign-ins of all people with kubectl, in the cluster that it selects.
type Kubectl struct {
	Context    string // in the kubeconfig; "": the current one
	Namespace  string // of the sign-ins; "": SigninNamespace
	Kubeconfig string // a file; "": kubectl's default
	Timeout    time.Duration
	Env        []string // for kubectl; nil: the environment of tka
}

// A Session is a sign-in as stored in the cluster.
type Session struct {
	Name       string   `json:"name"`
	Login      string   `json:"login"`
	Device     string   `json:"device"`
	Session    string   `json:"session,omitempty"` // "": the default one
	Reason     string   `json:"reason,omitempty"`  // that the person gave
	Role       string   `json:"role"`
	Namespaces []string `json:"namespaces"` // empty: the whole cluster, or as in Bind

	Bind    []signin.Role `json:"bind,omitempty"` // each role and where it applies, if there are several
	Phase   string        `json:"phase"`
	Until   string        `json:"until"` // RFC 3339; "": not provisioned
	Since   string        `json:"since"`
	Revoked bool          `json:"revoked,omitempty"`
	Error   string        `json:"error,omitempty"`
}

// Sessions returns all sign-ins, sorted by login and name.
func (c Kubectl) Sessions(ctx context.Context) ([]Session, error) {
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
				Session    string
				Reason     string
				Role       string
				Namespaces []string
				Bind       []signin.Role
			}
			Status struct {
				Phase      string
				Role       string
				Namespaces []string
				Bind       []signin.Role
				ValidUntil string
			}
		}
	}
	if err := json.Unmarshal(text, &list); err != nil {
		return nil, output.Errorf(output.ExitFailed, "kubectl could not list sign-ins: %v", err).Because(err).Try("kubectl get %s -n %s -o json", signinsResource, output.ShellQuote(cmp.Or(c.Namespace, SigninNamespace)))
	}
	all := []Session{}
	for _, i := range list.Items {
		s := Session{Name: i.Metadata.Name, Login: i.Spec.User.Login, Device: i.Spec.Device.Name, Session: i.Spec.Session, Reason: i.Spec.Reason, Role: i.Status.Role, Namespaces: i.Status.Namespaces, Bind: i.Status.Bind,
			Phase: cmp.Or(i.Status.Phase, "Pending"), Until: i.Status.ValidUntil, Since: i.Metadata.CreationTimestamp}
		if s.Role == "" { // not bound yet: show the requested role
			s.Role, s.Namespaces, s.Bind = i.Spec.Role, i.Spec.Namespaces, i.Spec.Bind
		}
		s.Namespaces = append([]string{}, s.Namespaces...)
		all = append(all, s)
	}
	slices.SortFunc(all, func(a, b Session) int { return cmp.Or(cmp.Compare(a.Login, b.Login), cmp.Compare(a.Name, b.Name)) })
	return all, nil
}

// Revoke ends the sign-in with that name. It is no error if the sign-in is already gone.
func (c Kubectl) Revoke(ctx context.Context, name string) error {
	_, err := c.run(ctx, "delete", signinsResource, name, "--ignore-not-found", "--wait=true")
	return err
}

// run runs kubectl as the user of tka.
func (c Kubectl) run(ctx context.Context, args ...string) ([]byte, error) {
	path, err := exec.LookPath("kubectl")
	if err != nil {
		return nil, output.Errorf(output.ExitFailed, "This command needs kubectl, and kubectl is not in $PATH").Because(err).
			Try("Install kubectl and an administrator's kubeconfig.")
	}
	args = append(args, "--namespace", cmp.Or(c.Namespace, SigninNamespace))
	if c.Context != "" {
		args = append(args, "--context", c.Context)
	}
	if c.Kubeconfig != "" {
		args = append(args, "--kubeconfig", c.Kubeconfig)
	}
	cmd := exec.CommandContext(ctx, path, args...)
	cmd.Env = c.Env
	cmd.WaitDelay = time.Second
	var stderr bytes.Buffer
	cmd.Stderr = &limitedWriter{w: &stderr, left: 64 << 10}
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		return nil, output.Errorf(output.ExitFailed, "kubectl cannot be run: %v", err).Because(err).Try("kubectl version")
	}
	text, readErr := io.ReadAll(io.LimitReader(out, maxSigninBytes+1))
	if readErr == nil && len(text) > maxSigninBytes {
		readErr = errors.New("the list is too large")
	}
	if readErr != nil {
		cmd.Process.Kill()
	}
	err = cmd.Wait()
	switch message := strings.TrimSpace(stderr.String()); {
	case ctx.Err() != nil && errors.Is(context.Cause(ctx), context.DeadlineExceeded):
		return nil, output.Errorf(output.ExitNotReady, "kubectl did not finish within %v", c.Timeout).Try("Allow more time: --timeout 2m")
	case ctx.Err() != nil:
		return nil, output.Errorf(output.ExitInterrupted, "interrupted")
	case readErr != nil:
		return nil, output.Errorf(output.ExitFailed, "kubectl: %v", readErr).Because(readErr)
	case err != nil:
		line, _, _ := strings.Cut(message, "\n")
		return nil, output.Errorf(kubectlExitCode(message), "kubectl: %s", cmp.Or(line, err.Error())).Because(err).Try("Select a context with administrator rights: --context NAME")
	}
	return text, nil
}

// kubectlExitCode derives an exit code from kubectl's messages, because kubectl always exits with 1.
func kubectlExitCode(message string) int {
	switch {
	case strings.Contains(message, "(Forbidden)"), strings.Contains(message, "Unauthorized"), strings.Contains(message, "must be logged in"):
		return output.ExitRefused
	case strings.Contains(message, "Unable to connect"), strings.Contains(message, "was refused"), strings.Contains(message, "i/o timeout"), strings.Contains(message, "no such host"):
		return output.ExitUnreachable
	}
	return output.ExitFailed
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
