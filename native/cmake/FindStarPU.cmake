# Finds a StarPU that this project can use. The main CMakeLists.txt calls it; ci/starpu.sh looks in the same places, in the
# same order, with the same conditions.
#
# Places: STARPU_PREFIX (CMake variable, then environment variable; when set it is the only one), pkg-config's starpu-1.4
# and starpu-1.5, <checkout>/.cache/starpu.
#
# Result:
#   StarPU::starpu       the library and its headers, with hwloc's
#   StarPU::mpi          likewise with StarPU-MPI; MPI itself (MPI::MPI_C) has to be added
#   StarPU_FOUND StarPU_VERSION StarPU_PREFIX StarPU_INCLUDE_DIR StarPU_LIBRARY StarPU_MPI_LIBRARY
#   StarPU_OPENCL: 1 if it was configured with OpenCL
#
# Nothing of it goes into the CMake cache, so that an incremental build notices another StarPU.

find_package(PkgConfig QUIET)

# The number after "#define STARPU_<name>" in the text of starpu_config.h; empty if it isn't defined.
function(_starpu_config_value text name result)
    if(text MATCHES "#define STARPU_${name}[ \t]+([0-9]+)")
        set(${result} ${CMAKE_MATCH_1} PARENT_SCOPE)
    else()
        set(${result} "" PARENT_SCOPE)
    endif()
endfunction()

# StarPU's folder of headers below a prefix's: the first that is there of 1.4 and 1.5, or else 1.4.
set(_starpu_apis 1.4 1.5)
function(_starpu_include_dir folder result)
    set(${result} "${folder}/starpu/1.4" PARENT_SCOPE)
    if(EXISTS "${folder}/starpu/1.5" AND NOT EXISTS "${folder}/starpu/1.4")
        set(${result} "${folder}/starpu/1.5" PARENT_SCOPE)
    endif()
endfunction()

# Takes the StarPU with these directories if it is usable, else adds the reason to _starpu_refused.
function(_starpu_try place prefix include_dir library_dir)
    set(reason "")
    set(version "")
    get_filename_component(api "${include_dir}" NAME)
    find_library(library NAMES starpu-${api} PATHS "${library_dir}" NO_DEFAULT_PATH NO_CACHE)
    find_library(mpi_library NAMES starpumpi-${api} PATHS "${library_dir}" NO_DEFAULT_PATH NO_CACHE)
    if(NOT EXISTS "${include_dir}/starpu_config.h" OR NOT EXISTS "${include_dir}/starpu.h")
        set(reason "no StarPU headers (starpu.h, starpu_config.h) in ${include_dir}")
    else()
        file(READ "${include_dir}/starpu_config.h" config)
        _starpu_config_value("${config}" MAJOR_VERSION major)
        _starpu_config_value("${config}" MINOR_VERSION minor)
        _starpu_config_value("${config}" RELEASE_VERSION release)
        _starpu_config_value("${config}" USE_OPENCL opencl)
        set(version "${major}.${minor}.${release}")
        if(version VERSION_LESS 1.4.10 OR version VERSION_GREATER_EQUAL 1.6)
            set(reason "${include_dir} is of version ${version}")
        elseif(NOT library)
            set(reason "no libstarpu-${api} shared library in ${library_dir}")
        elseif(NOT mpi_library OR NOT EXISTS "${include_dir}/starpu_mpi.h")
            set(reason "${include_dir} is version ${version} without StarPU-MPI (no starpu_mpi.h, or no libstarpumpi-${api} in ${library_dir})")
        endif()
    endif()
    if(reason)
        list(APPEND _starpu_refused "${place}: ${reason}")
        set(_starpu_refused "${_starpu_refused}" PARENT_SCOPE)
        return()
    endif()
    set(StarPU_VERSION "${version}" PARENT_SCOPE)
    set(StarPU_OPENCL "${opencl}" PARENT_SCOPE)
    set(StarPU_PREFIX "${prefix}" PARENT_SCOPE)
    set(StarPU_INCLUDE_DIR "${include_dir}" PARENT_SCOPE)
    set(StarPU_LIBRARY "${library}" PARENT_SCOPE)
    set(StarPU_MPI_LIBRARY "${mpi_library}" PARENT_SCOPE)
endfunction()

set(_starpu_refused "")
foreach(_starpu_variable VERSION OPENCL PREFIX INCLUDE_DIR LIBRARY MPI_LIBRARY)
    set(StarPU_${_starpu_variable} "")
endforeach()

set(_starpu_prefix "${STARPU_PREFIX}")
if(NOT _starpu_prefix)
    set(_starpu_prefix "$ENV{STARPU_PREFIX}")
endif()

if(_starpu_prefix)
    file(GLOB _starpu_library_dirs "${_starpu_prefix}/lib" "${_starpu_prefix}/lib64" "${_starpu_prefix}/lib/*-linux-gnu*")
    _starpu_include_dir("${_starpu_prefix}/include" _starpu_includedir)
    _starpu_try("STARPU_PREFIX" "${_starpu_prefix}" "${_starpu_includedir}" "${_starpu_library_dirs}")
else()
    if(PkgConfig_FOUND)
        foreach(_starpu_api ${_starpu_apis})
            pkg_get_variable(_starpu_prefix starpu-${_starpu_api} prefix)
            pkg_get_variable(_starpu_includedir starpu-${_starpu_api} includedir)
            pkg_get_variable(_starpu_libdir starpu-${_starpu_api} libdir)
            if(_starpu_includedir AND NOT StarPU_LIBRARY)
                _starpu_try("pkg-config" "${_starpu_prefix}" "${_starpu_includedir}/starpu/${_starpu_api}" "${_starpu_libdir}")
            endif()
        endforeach()
    endif()
    if(NOT StarPU_LIBRARY)
        get_filename_component(_starpu_prefix "${CMAKE_CURRENT_LIST_DIR}/../../.cache/starpu" REALPATH)
        set(_starpu_recipe "")
        if(EXISTS "${_starpu_prefix}/recipe")
            file(STRINGS "${_starpu_prefix}/recipe" _starpu_recipe LIMIT_COUNT 1)
        endif()
        if(_starpu_recipe STREQUAL _starpu_prefix)
            _starpu_include_dir("${_starpu_prefix}/include" _starpu_includedir)
            _starpu_try(".cache/starpu" "${_starpu_prefix}" "${_starpu_includedir}" "${_starpu_prefix}/lib")
        elseif(EXISTS "${_starpu_prefix}")
            list(APPEND _starpu_refused ".cache/starpu: built for another directory")
        endif()
    endif()
endif()

list(JOIN _starpu_refused "\n    " _starpu_refused)
if(_starpu_refused)
    string(PREPEND _starpu_refused "Refused:\n    ")
endif()

include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(StarPU
    REQUIRED_VARS StarPU_LIBRARY StarPU_INCLUDE_DIR
    VERSION_VAR StarPU_VERSION
    REASON_FAILURE_MESSAGE "needed is StarPU 1.4.10 or newer, older than 1.6, configured with MPI.
    ${_starpu_refused}
    Run ci/bootstrap.sh, which builds one, or set STARPU_PREFIX to an installed one.")

if(StarPU_FOUND AND NOT TARGET StarPU::starpu)
    add_library(StarPU::starpu SHARED IMPORTED)
    set_target_properties(StarPU::starpu PROPERTIES
        IMPORTED_LOCATION "${StarPU_LIBRARY}"
        INTERFACE_INCLUDE_DIRECTORIES "${StarPU_INCLUDE_DIR}")
    # StarPU's headers include hwloc.h.
    if(PkgConfig_FOUND)
        pkg_check_modules(StarPU_hwloc QUIET IMPORTED_TARGET hwloc)
        if(StarPU_hwloc_FOUND)
            set_target_properties(StarPU::starpu PROPERTIES INTERFACE_LINK_LIBRARIES PkgConfig::StarPU_hwloc)
        endif()
    endif()
    add_library(StarPU::mpi SHARED IMPORTED)
    set_target_properties(StarPU::mpi PROPERTIES
        IMPORTED_LOCATION "${StarPU_MPI_LIBRARY}"
        INTERFACE_LINK_LIBRARIES StarPU::starpu)
endif()
