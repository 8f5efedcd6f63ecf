# Makes the program for OpenCL devices out of the plain kernels, as a header with its text:
#   cmake -DSOURCES=<native/src> -DTEXT=<the header> -P DeviceProgram.cmake    (with -DPLAIN=ON without tiled matmuls)
# OpenCL C lacks #include of these files, and pointers name the memory that they point into. A device calls a kernel with
# buffers and an offset in bytes into each; its work-items are the team.
file(READ ${SOURCES}/kernels/kernels.h kernels)
string(REGEX MATCH "enum sum_start {[^}]*};" sum_start "${kernels}")
string(REGEX MATCH "struct adamw_options {[^}]*};" adamw_options "${kernels}")
file(READ ${SOURCES}/devices/prelude.cl program)
string(APPEND program "${sum_start}\n${adamw_options}\n")
foreach(file IN ITEMS team.h elementary/exact.h elementary/table.h elementary/scalar.h ref/ref.h ref/adamw.c ref/attention.c
        ref/crossentropy.c ref/encoder.c ref/gelu.c ref/gradient.c ref/layernorm.c ref/layernorm_weight.c ref/matmul.c
        ref/residual.c ref/softmax.c)
    file(READ ${SOURCES}/kernels/${file} text)
    if(file STREQUAL "elementary/scalar.h")
        file(READ ${SOURCES}/kernels/elementary/fast.h fast)
        string(REPLACE "#include \"kernels/elementary/fast.h\"" "${fast}" text "${text}")
    endif()
    string(APPEND program "${text}")
endforeach()
string(REGEX REPLACE "#(include|pragma once)[^\n]*\n" "" program "${program}")
string(REGEX REPLACE "\nstatic const " "\n__constant " program "${program}")
string(REGEX REPLACE "(float|int32_t) \\*" "__global \\1 *" program "${program}")
set(tiled "")
if(NOT PLAIN)
    file(READ ${SOURCES}/devices/matmul.cl tiled)
endif()
string(APPEND program "${tiled}")

# One entry point for each kernel of kernels.def.
file(READ ${SOURCES}/kernels/kernels.def list)
string(REGEX REPLACE "/\\*([^*]|\\*[^/])*\\*/" "" list "${list}")
string(REGEX REPLACE "[ \n]+" " " list "${list}")
string(REGEX MATCHALL "KERNEL\\([^()]*\\([^()]*\\)\\)" list "${list}")
set(pointer "(const )?(float|int32_t) \\*([a-z]+)")
foreach(kernel IN LISTS list)
    string(REGEX MATCH "KERNEL\\(([a-z_]+), \\((.*), struct team team\\)\\)" kernel "${kernel}")
    set(name ${CMAKE_MATCH_1})
    set(parameters "${CMAKE_MATCH_2}")
    string(REGEX REPLACE "${pointer}" "__global char *\\3, ulong \\3_at" declared "${parameters}")
    string(REPLACE "size_t " "ulong " declared "${declared}")
    string(REPLACE "enum sum_start " "int " declared "${declared}")
    string(REPLACE "const struct adamw_options *" "struct adamw_options " declared "${declared}")
    string(REGEX REPLACE "${pointer}" "(__global \\2 *)(\\3 + \\3_at)" passed "${parameters}")
    string(REPLACE "const struct adamw_options *" "&" passed "${passed}")
    string(REGEX REPLACE "(size_t|float|int64_t|enum sum_start) ([a-zA-Z0-9_]+)" "\\2" passed "${passed}")
    if(tiled MATCHES " ${name}_tiled")
        string(APPEND program "
__kernel __attribute__((reqd_work_group_size(GROUP, 1, 1))) void ${name}(${declared})
{
    __local struct panels panels;
    ${name}_tiled(${passed}, &panels);
}
")
    else()
        string(APPEND program "
__kernel void ${name}(${declared})
{
    ${name}_ref(${passed}, (struct team){get_global_id(0), get_global_size(0)});
}
")
    endif()
endforeach()

string(HEX "${program}" bytes)
string(REGEX REPLACE "(..)" "0x\\1," bytes "${bytes}")
file(WRITE ${TEXT} "/* The program for OpenCL devices, by native/cmake/DeviceProgram.cmake. */\nstatic const char device_program[] = {${bytes}0};\n")
