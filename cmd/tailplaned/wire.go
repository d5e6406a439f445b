package main

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/tailplane/tailplane/internal/access"
	"github.com/tailplane/tailplane/internal/audit"
	"github.com/tailplane/tailplane/internal/door"
	"github.com/tailplane/tailplane/internal/settings"
	"github.com/tailplane/tailplane/internal/signin"
	"github.com/tailplane/tailplane/internal/tailnet"
)

func newNode(set settings.File, log *slog.Logger) (*tailnet.Node, error) {
	var key tailnet.Secret
	if path := set.Tailnet.AuthKeyFile; path != "" {
		b, err := os.ReadFile(path)
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			return nil, fmt.Errorf("tailnet.authKeyFile: %w", err)
		}
		if err != nil {
			log.Warn("the file of the auth key is not there; going on without a key", "path", path)
		}
		key = tailnet.NewSecret(strings.TrimSpace(string(b)))
	}
	t := set.Tailnet
	return tailnet.New(tailnet.Config{Hostname: t.Hostname, Tags: t.Tags, ControlURL: t.ControlURL, AuthKey: key, StateDir: t.StateDir, StateSecret: t.StateSecret,
		Port: t.Port, InsecureHTTP: t.InsecureHTTP, Capability: set.Signin.Capability, Log: log})
}

// openRecord opens the audit record. The key that signs it is beside the node's
// state, and made at the first start.
func openRecord(p *process, info signin.ClusterInfo) (*audit.Log, error) {
	dir := p.set.Tailnet.StateDir
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("tailnet.stateDir: %w", err)
	}
	key, err := audit.LoadKey(filepath.Join(dir, "audit.key"))
	if err != nil {
		return nil, err
	}
	c := audit.Config{Path: p.set.Audit.File, Cluster: info.Name, ClusterID: info.ID, Role: string(settings.AccessRole), Software: info.Version,
		Key: key, Required: p.set.Audit.Required, Log: p.log, Now: time.Now}
	if c.Path == "-" {
		c.Path, c.Writer = "", os.Stdout
	}
	record, err := audit.Open(c)
	if err != nil {
		return nil, fmt.Errorf("audit.file: %w", err)
	}
	p.log.Info("the audit record is open", "key", key.Public().String())
	p.metrics.Audit(record.Stats)
	return record, nil
}

func limits(l settings.Limits) door.Limits {
	rate := func(r settings.Rate) door.Rate { return door.Rate{PerMinute: r.PerMinute, Burst: r.Burst} }
	return door.Limits{
		Verbs: map[access.Verb]door.Rate{access.SigninLogin: rate(l.Login), access.SigninKubeconfig: rate(l.Kubeconfig)},
		Other: rate(l.Others), All: rate(l.All), WaitersPerCaller: 4, Waiters: 1000, Connections: l.Connections,
	}
}
