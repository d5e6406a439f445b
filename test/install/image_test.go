//go:build unix

package install

import (
	"bytes"
	"context"
	"crypto/sha256"
	"debug/buildinfo"
	"debug/elf"
	"fmt"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
)

// An instruction is one instruction of a Dockerfile.
type instruction struct {
	stage      int // 1 is the first FROM
	name, args string
}

// dockerfile parses the subset that the product's Dockerfile uses: one instruction per line, continued by a
// backslash, and comments on separate lines.
func dockerfile(t *testing.T) (all []instruction) {
	t.Helper()
	b, err := os.ReadFile(root + "/build/Dockerfile")
	if err != nil {
		t.Fatal(err)
	}
	stage, line := 0, ""
	for l := range strings.Lines(string(b)) {
		if l = strings.TrimSpace(l); l == "" || strings.HasPrefix(l, "#") {
			continue
		}
		if part, more := strings.CutSuffix(l, `\`); more {
			line += part
			continue
		}
		name, args, _ := strings.Cut(line+l, " ")
		line = ""
		if name == "FROM" {
			stage++
		}
		all = append(all, instruction{stage, name, strings.Join(strings.Fields(args), " ")})
	}
	return all
}

// DS-05: the image contains one static program, which runs with a numeric user, and has no base image.
func TestDS05_Image(t *testing.T) {
	all := dockerfile(t)
	last := all[len(all)-1].stage
	if last < 2 {
		t.Fatalf("%d stages: what builds must not be what runs", last)
	}
	var final []instruction
	for _, i := range all {
		if i.stage == last {
			final = append(final, i)
		}
		if i.name == "ADD" {
			t.Errorf("ADD %s: it fetches and unpacks", i.args)
		}
	}
	if final[0].args != "scratch" {
		t.Errorf("the last stage is from %s", final[0].args)
	}
	user, seen := "", map[string]int{}
	for _, i := range final[1:] {
		seen[i.name]++
		switch i.name {
		case "COPY":
			if from, _, _ := strings.Cut(i.args, " "); from != "--from=build" {
				t.Errorf("COPY %s: the image may contain only files of the first stage", i.args)
			}
		case "USER":
			user = i.args
		case "ENTRYPOINT":
			if !strings.HasPrefix(i.args, `["/`) {
				t.Errorf("ENTRYPOINT %s needs a shell or PATH", i.args)
			}
		case "ARG", "LABEL", "WORKDIR":
		default:
			t.Errorf("%s in the last stage", i.name)
		}
	}
	uid, gid, _ := strings.Cut(user, ":")
	for _, id := range []string{uid, gid} {
		if n, err := strconv.Atoi(id); err != nil || n < 1000 {
			t.Errorf("USER %q: kubelet's runAsNonRoot needs a number, and no privileged one", user)
		}
	}
	switch {
	case seen["ENTRYPOINT"] != 1:
		t.Errorf(`the last stage: seen["ENTRYPOINT"] = %v, want 1`, seen["ENTRYPOINT"])
	case seen["LABEL"] == 0:
		t.Errorf(`the last stage: seen["LABEL"] = %v`, seen["LABEL"])
	case seen["COPY"] < 2:
		t.Errorf(`the last stage: seen["COPY"] = %v, want at least 2`, seen["COPY"])
	}
	// The pods run as the image's user.
	for _, p := range profiles(t) {
		for _, u := range objects(t, render(t, p.values)) {
			if pod, ok := podOf(t, u); ok && fmt.Sprint(*pod.SecurityContext.RunAsUser) != uid {
				t.Errorf("%s %s runs as %d, the image as %s", u.GetKind(), u.GetName(), *pod.SecurityContext.RunAsUser, uid)
			}
		}
	}
	// The toolchain is at least as new as the module requires.
	gomod, err := os.ReadFile(root + "/go.mod")
	if err != nil {
		t.Fatal(err)
	}
	want := regexp.MustCompile(`(?m)^go (\S+)$`).FindSubmatch(gomod)
	if len(want) < 2 || all[0].args != "GO_IMAGE=golang:"+string(want[1]) {
		t.Errorf("ARG %s, but go.mod has go %s", all[0].args, want[1:])
	}
	if names := regexp.MustCompile(`[a-z0-9-]+\.(io|com|dev|net|org)/`).FindString(strings.Join(wordsOf(all), " ")); names != "" {
		t.Errorf("the Dockerfile names a registry: %s", names)
	}
}

func wordsOf(all []instruction) (words []string) {
	for _, i := range all {
		words = append(words, i.args)
	}
	return words
}

// DS-05: the Dockerfile's command builds a static program without local paths. It starts in an empty environment. The
// same sources in another folder give the same bytes.
func TestDS05_Binary(t *testing.T) {
	if _, err := os.Stat(root + "/.git"); err != nil {
		t.Skip("SKIP image: no git checkout to build from")
	}
	var build []string
	var env []string
	for _, i := range dockerfile(t) {
		if i.name == "RUN" && strings.Contains(i.args, "go build") {
			for word := range strings.FieldsSeq(strings.ReplaceAll(i.args, `"-s -w"`, "-s;-w")) {
				if key, _, ok := strings.Cut(word, "="); ok && build == nil && key == strings.ToUpper(key) {
					env = append(env, word)
				} else {
					build = append(build, strings.ReplaceAll(word, ";", " "))
				}
			}
		}
	}
	out := slices.Index(build, "-o") + 1
	if len(build) < 4 || out == 0 {
		t.Fatalf("no go build in the Dockerfile: %v", build)
	}
	for i, e := range env {
		env[i] = strings.NewReplacer("$TARGETOS", runtime.GOOS, "$TARGETARCH", runtime.GOARCH).Replace(e)
	}
	// The image contains its toolchain; here the go command in PATH finds one.
	env = slices.DeleteFunc(env, func(e string) bool { return strings.HasPrefix(e, "GOTOOLCHAIN=") })
	ctx, cancel := context.WithTimeout(t.Context(), 15*time.Minute)
	defer cancel()
	run := func(dir string, args ...string) string {
		t.Helper()
		cmd := exec.CommandContext(ctx, args[0], args[1:]...)
		cmd.Dir, cmd.Env = dir, append(append(os.Environ(), env...), "PWD="+dir)
		b, err := cmd.CombinedOutput()
		if err != nil {
			t.Fatalf("%s: %v\n%s", strings.Join(args, " "), err, b)
		}
		return string(b)
	}
	here, err := filepath.Abs(root)
	if err != nil {
		t.Fatal(err)
	}
	var sums [][32]byte
	var binary string
	for range 2 {
		dir := filepath.Join(t.TempDir(), "src")
		run(here, "git", "-c", "safe.directory=*", "clone", "--quiet", "--local", "--no-hardlinks", here, dir)
		binary = filepath.Join(t.TempDir(), path.Base(build[out]))
		command := slices.Clone(build)
		command[out] = binary
		run(dir, command...)
		b, err := os.ReadFile(binary)
		if err != nil {
			t.Fatal(err)
		}
		if bytes.Contains(b, []byte(dir)) {
			t.Errorf("it names the folder it was built in")
		}
		sums = append(sums, sha256.Sum256(b))
	}
	if sums[0] != sums[1] {
		t.Error("two builds of the same commit differ")
	}

	info, err := buildinfo.ReadFile(binary)
	if err != nil {
		t.Fatal(err)
	}
	set := map[string]string{}
	for _, s := range info.Settings {
		set[s.Key] = s.Value
	}
	switch {
	case set["CGO_ENABLED"] != "0":
		t.Errorf(`version: set["CGO_ENABLED"] = %q, want %q`, set["CGO_ENABLED"], "0")
	case set["-trimpath"] != "true":
		t.Errorf(`version: set["-trimpath"] = %q, want %q`, set["-trimpath"], "true")
	case set["vcs.revision"] == "":
		t.Errorf(`version: set["vcs.revision"] is empty; %s, %v`, info.Main.Version, set)
	case set["vcs.modified"] != "false":
		t.Errorf(`version: set["vcs.modified"] = %q, want %q`, set["vcs.modified"], "false")
	case info.Main.Version == "":
		t.Errorf("version: info.Main.Version is empty; %s, %v", info.Main.Version, set)
	case info.Main.Version == "(devel)":
		t.Errorf("version: info.Main.Version = %q", info.Main.Version)
	}
	if runtime.GOOS == "linux" {
		f, err := elf.Open(binary)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		libs, err := f.ImportedLibraries()
		if err != nil || len(libs) > 0 {
			t.Errorf("it needs %v, %v", libs, err)
		}
		for _, p := range f.Progs {
			if p.Type == elf.PT_INTERP {
				t.Error("it needs a loader")
			}
		}
	}
	// Without environment, home directory or configuration, it still reports what is missing.
	cmd := exec.CommandContext(ctx, binary, "access", "--check")
	cmd.Dir, cmd.Env = "/", []string{}
	b, err := cmd.CombinedOutput()
	if cmd.ProcessState.ExitCode() != 2 || !strings.Contains(string(b), "/etc/tailplane/config.yaml") {
		t.Errorf("without settings: %v: %s", err, b)
	}
	t.Logf("%s, %x", info.Main.Version, sums[0][:8])
}
