;; What building and running starpullm needs, for:  guix shell -m ci/guix/manifest.scm
;; Not tried: there was no Guix where this was written. StarPU comes from Guix or from the channel guix-hpc, and has to
;; be 1.4.10 or newer, older than 1.5.
(use-modules (guix packages)
             (guix profiles)
             (guix utils)
             (gnu packages))

(define starpu-with-parallel-workers
  (let ((starpu (specification->package "starpu")))
    (package
      (inherit starpu)
      (arguments
       (substitute-keyword-arguments (package-arguments starpu)
         ((#:tests? _ #f) #f)
         ((#:configure-flags flags ''())
          `(append ,flags
                   '("--enable-parallel-worker"
                     "--enable-max-sched-ctxs=64"
                     "--enable-maxcpus=256"
                     "--enable-maxnodes=8"
                     "--disable-fxt"))))))))

(concatenate-manifests
 (list (packages->manifest (list starpu-with-parallel-workers))
       (specifications->manifest
        '("bash" "cmake" "coreutils" "gcc-toolchain" "git" "hwloc" "make" "ninja" "openmpi" "pkg-config" "python"
          "xxhash" "zlib"))))
