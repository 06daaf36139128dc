package runtimes

import (
	"context"
	"debug/elf"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"runtime"
	"strings"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"github.com/criproxy/criproxy/testbed/host"
)

// CritestMirrors returns [Config].Mirrors for critest: the images that critest names come from the registry at addr,
// which [Registry.PushCritest] must have filled.
func CritestMirrors(addr string) map[string]string {
	return map[string]string{"registry.k8s.io": addr, "k8s.gcr.io": addr, "gcr.io": addr}
}

// Busybox returns the path of the machine's busybox. It must be static, because it becomes all programs of an image.
func Busybox() (string, error) {
	program, err := exec.LookPath("busybox")
	if err != nil {
		return "", fmt.Errorf("testbed: no busybox in PATH (apt-get install busybox-static)")
	}
	file, err := elf.Open(program)
	if err != nil {
		return "", fmt.Errorf("testbed: reading %s: %w", program, err)
	}
	defer file.Close()
	for _, p := range file.Progs {
		if p.Type == elf.PT_INTERP {
			return "", fmt.Errorf("testbed: %s is not static (apt-get install busybox-static)", program)
		}
	}
	return program, nil
}

// own is the folder of critest's own images in gcr.io.
const own = "k8s-staging-cri-tools/"

// PushCritest stores replacements for the images that critest names, made from the machine's busybox. There is none for
// test-image-digest, which critest names by the digest of the original, and none for nonewprivs, which is a special
// program.
func (r *Registry) PushCritest() error {
	busybox, err := Busybox()
	if err != nil {
		return err
	}
	programs, err := busyboxLayer(busybox)
	if err != nil {
		return err
	}
	serve := func(port string) v1.Config { return v1.Config{Cmd: []string{"serve", port}} }
	configs := map[string]v1.Config{
		"e2e-test-images/busybox:1.29-2":        {},
		"e2e-test-images/nginx:1.14-2":          serve("80"),
		"e2e-test-images/httpd:2.4.39-4":        serve("80"),
		own + "hostnet-nginx-" + runtime.GOARCH: serve("12003"),
		own + "test-image-user-uid":             {User: "1002"},
		own + "test-image-user-username":        {User: "www-data"},
		own + "test-image-user-uid-group":       {User: "1003:50000"},
		own + "test-image-user-username-group":  {User: "www-data:50000"},
		own + "test-image-predefined-group":     {User: "1000"},
		"pause:3.9":                             {Cmd: []string{"sleep", "infinity"}},
	}
	for _, name := range []string{"latest", "tag:test", "tag:all", "1", "2", "3", "tags:1", "tags:2", "tags:3"} {
		configs[own+"test-image-"+name] = v1.Config{}
	}
	for name, config := range configs {
		if len(config.Cmd) == 0 {
			config.Cmd = []string{"sh"}
		}
		config.Env = shellEnv
		content := name
		if strings.Contains(name, "-tags:") {
			content = "one image with several tags"
		}
		id, err := layer(plain(map[string]string{"/etc/image": content}, 0o644))
		if err != nil {
			return err
		}
		image, err := assemble(config, programs, id)
		if err != nil {
			return err
		}
		if err := r.Push(name, image); err != nil {
			return err
		}
	}
	return nil
}

// busyboxLayer makes a layer of busybox under the names of all its programs, with users and some missing programs.
func busyboxLayer(program string) (v1.Layer, error) {
	content, err := os.ReadFile(program)
	if err != nil {
		return nil, fmt.Errorf("testbed: reading busybox: %w", err)
	}
	list, err := host.Command(context.Background(), program, "--list").Output()
	if err != nil {
		return nil, fmt.Errorf("testbed: asking busybox for its programs: %w", err)
	}
	files := map[string]file{
		"/bin/busybox": {Content: string(content), Mode: 0o755},
		// A process with this name serves a page; see /usr/bin/serve.
		"/usr/sbin/nginx": {Content: string(content), Mode: 0o755},
	}
	for name := range strings.FieldsSeq(string(list)) {
		if name != "busybox" {
			files["/bin/"+name] = file{Link: "busybox"}
		}
	}
	maps.Copy(files, plain(map[string]string{
		// Not all busyboxes have these.
		"/usr/bin/pgrep": "#!/bin/sh\nexec pidof \"$@\"\n",
		// It prints the time, with fractions of a second.
		"/usr/bin/nmeter": "#!/bin/sh\nread up rest < /proc/uptime\nwhile read key value rest; do [ $key != btime ] || boot=$value; done < /proc/stat\n" +
			"echo $(date -u -d @$((boot + ${up%.*})) +%T).${up#*.}\n",
		"/usr/bin/ipcs":  "#!/bin/sh\nexec cat /proc/sysvipc/shm\n",
		"/usr/bin/serve": "#!/bin/sh\necho httpd begins\nmkdir -p /var/run && echo $$ > /var/run/nginx.pid\nexec -a httpd /usr/sbin/nginx -f -p \"$1\" -h /www\n",
	}, 0o755))
	maps.Copy(files, plain(map[string]string{
		"/etc/passwd": "root:x:0:0:root:/root:/bin/sh\nwww-data:x:33:33:www-data:/var/www:/bin/false\n" +
			"default-user:x:1000:1000::/home/default-user:/bin/sh\nnobody:x:65534:65534:nobody:/home:/bin/false\n",
		"/etc/group":      "root:x:0:\nwww-data:x:33:\ndefault-user:x:1000:\nnogroup:x:65534:\ngroup-defined-in-image:x:50000:default-user\n",
		"/www/index.html": "<html><title>Welcome to nginx!</title></html>\n",
		"/tmp/.keep":      "",
		"/root/.keep":     "",
		"/var/run/.keep":  "",
	}, 0o644))
	return layer(files)
}
